"""Every example runs, is short and ends with one line that says how it went; the notebooks are committed as they ran.

Both use public names only.
"""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from helpers.documents import ROOT

import mrreg

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PUBLIC = {"mrreg", "mrreg.distributed", "mrreg.theory"}


def _only_public(text: str) -> bool:
    modules = re.findall(r"^ *(?:from|import) (mrreg[\w.]*)", text, re.MULTILINE)
    return set(modules) <= PUBLIC and set(re.findall(r"\bmrreg\.(\w+)", text)) <= {*mrreg.__all__, "distributed"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert "mrreg" in text
    assert _only_public(text)
    runpy.run_path(str(path))["main"](steps=20)
    closing = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"\d", closing)
    assert "nan" not in closing


@pytest.mark.parametrize("name", ["finetuning", "thin_networks"])
def test_a_notebook_has_the_outputs_of_one_run_without_warnings_or_paths(name: str) -> None:
    cells = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code: list[dict[str, Any]] = [cell for cell in cells if cell["cell_type"] == "code"]
    assert _only_public("".join(line for cell in code for line in cell["source"]))
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    text = json.dumps([{**output, "data": {**output.get("data", {}), "image/png": ""}} for output in outputs])
    assert not re.search(r"Warning|/(home|root|tmp|work|Users)/", text)
