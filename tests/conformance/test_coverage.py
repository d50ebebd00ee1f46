"""What thin finds in published models is exact: one masked step of each is that of a literal loop in float64.

`PYTHONPATH=.:tests python tests/conformance/test_coverage.py` writes docs/coverage.md.
"""

import sys
import warnings
from collections import Counter
from copy import deepcopy
from functools import partial
from time import process_time

import pytest
import torch
from helpers.architectures import MODELS, build, double
from helpers.documents import ROOT
from helpers.thin_oracle import check_steps

import mrreg

PAGE = ROOT / "docs" / "coverage.md"
HEAD = ("Model", "From", "Lose units", "Left out", "Zeroed", "Not asked for", "Refused", "Masked step", "Search (s)")


def row(name: str) -> str:
    """Try a model, and write its line of the table."""
    model, inputs = double(build(name))
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
def test_a_masked_step_equals_the_literal_one_and_the_table_says_what_is_found() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    written = {line.split(" ")[1]: line.split("|")[:-2] for line in lines[1:]}
    assert {name: row(name).split("|")[:-2] for name in MODELS} == written


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
