"""Every test that the README names as a proof is there."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SECTION = (TESTS.parent / "README.md").read_text(encoding="utf-8").split("## Guarantees")[-1].split("\n## ")[0]
PROOFS = re.findall(r"`([\w/]+\.py)::(\w+)`", SECTION)


@pytest.mark.parametrize(("path", "name"), PROOFS)
def test_proof_is_there(path: str, name: str) -> None:
    assert re.search(rf"^ *def {name}\(", (TESTS / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_row_has_a_proof() -> None:
    rows = [line for line in SECTION.splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 15
    assert all("::" in row for row in rows)
