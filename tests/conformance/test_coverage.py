"""What thin finds in published models is exact: one masked step of each is that of a literal loop in float64.

The others take minutes: `PYTHONPATH=.:tests python tests/conformance/test_coverage.py` tries all of them, and writes
docs/coverage.md.
"""

import sys
import warnings
from collections import Counter
from copy import deepcopy
from functools import partial
from time import process_time
from typing import Any

import pytest
import torch
from helpers.documents import ROOT
from helpers.thin_oracle import check_steps
from helpers.zoo import MODELS, build
from torch import nn

import mrreg

PAGE = ROOT / "docs" / "coverage.md"
HEAD = ("Model", "From", "Lose units", "Left out", "Zeroed", "Not asked for", "Refused", "Masked step", "Search (s)")
ORDINARY = ("lstm", "unet", "gpt2_lora", "densenet", "mamba", "falcon", "bloom", "squeezenet")


def double(name: str) -> tuple[nn.Module, Any]:
    """A model in float64, without dropout where `NoDropout` does not look."""
    model, inputs = build(name)
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model.double().train(), _double(inputs)


def _double(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _double(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_double, value))
    return value.double() if value.is_floating_point() else value


def row(name: str) -> str:
    """Try a model, and write its line of the table."""
    model, inputs = double(name)
    package = type(model).__module__.partition(".")[0]
    plain, before = deepcopy(model), process_time()
    model, report = mrreg.thin(model, p=0.5, k=5, example_inputs=inputs)
    seconds = process_time() - before
    if report.groups:
        check_steps(model, plain, report, inputs, partial(torch.optim.SGD, lr=1e-3), steps=1)
    kinds = Counter(entry.kind for entry in report.values() if entry.admitted)
    lost = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "none"
    zeroed = sum(entry.zeroed for entry in report.values())
    asked = sum(entry.reason == "not asked for" for entry in report.values())
    refused = len(report) - kinds.total() - asked
    numbers = kinds.total() - zeroed, zeroed, asked, refused, f"{report.masked_share:.2f}", f"{seconds:.1f}"
    return "| " + " | ".join(map(str, (name, "own" if package == "helpers" else package, lost, *numbers))) + " |"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ORDINARY)
def test_a_masked_step_equals_the_literal_one_and_the_table_says_what_is_found(name: str) -> None:
    found = row(name)
    written = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |"))
    assert found.split("|")[:-2] == written.split("|")[:-2]


def test_the_table_has_every_model() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert {line.split(" ")[1] for line in lines if line.startswith("| ")} == {*MODELS, "Model"}


def main(*names: str) -> None:
    """Write the table, with new lines for these models, or for all."""
    head, _, table = PAGE.read_text(encoding="utf-8").partition("| Model")
    rows = {line.split(" ")[1]: line for line in table.splitlines()[2:]}
    for name in names or MODELS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                rows[name] = row(name)
            except Exception as error:
                rows[name] = f"| {name} | failed: {type(error).__name__}: {str(error).splitlines()[0][:150]} |"
        sys.stdout.write(f"{rows[name]}\n")
        sys.stdout.flush()
        lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|", *(rows[n] for n in MODELS if n in rows)]
        PAGE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
