"""Every test that docs/guarantees.md names as a proof is there."""

import re

import pytest
from helpers.documents import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
PROOFS = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)


@pytest.mark.parametrize(("path", "name"), PROOFS)
def test_proof_is_there(path: str, name: str) -> None:
    assert re.search(rf"^ *def {name}\(", (ROOT / "tests" / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_row_has_a_proof() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| What")]
    assert len(rows) >= 15
    assert all("::" in row for row in rows)
