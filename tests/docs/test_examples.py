"""Every example runs, is short, uses public names only and ends with one line that says how it went."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trainers import forget_precision

import mrreg

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def _forget_precision() -> Iterator[None]:
    forget_precision()
    yield
    forget_precision()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert set(re.findall(r"\bmrreg\.(\w+)", text)) <= set(mrreg.__all__)
    runpy.run_path(str(path))["main"](steps=20)
    closing = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"\d", closing)
    assert "nan" not in closing
