"""The tables of docs/thin.md are those that are generated now."""

import re

import pytest
from helpers.architectures import ARCHITECTURES
from helpers.thin_table import BEGIN, END, PAGE, lines_of, tables

WRITTEN = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def _written(name: str) -> list[str]:
    return [line for line in WRITTEN.splitlines() if line.startswith(f"| `{name}` |")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "resnet18", "bert", "swin"])
def test_the_lines_of_a_model_are_up_to_date(name: str) -> None:
    assert _written(name) == lines_of(name), "run python -m helpers.thin_table"


def test_the_tables_have_every_model_and_nothing_else() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", WRITTEN, re.MULTILINE)) == set(ARCHITECTURES)
    assert tables({name: _written(name) for name in ARCHITECTURES}) == WRITTEN
