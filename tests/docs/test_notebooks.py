"""The notebooks are committed as they ran: all cells in order, outputs without warnings or anybody's paths."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.documents import ROOT

import mrreg

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"finetuning", "thin_networks"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_one_run(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    text = json.dumps([{**output, "data": {**output.get("data", {}), "image/png": ""}} for output in outputs])
    assert not re.search(r"Warning|/(home|root|tmp|work|Users)/", text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_only_public_names_are_used(path: Path) -> None:
    source = "".join(line for cell in code_cells(path) for line in cell["source"])
    assert set(re.findall(r"\bmrreg\.(\w+)", source)) <= set(mrreg.__all__)
