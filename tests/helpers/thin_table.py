"""The groups that `thin` finds in each architecture, as the tables of docs/thin.md.

`PYTHONPATH=.:tests python -m helpers.thin_table` writes them again.
"""

import re
from collections.abc import Iterator, Mapping

import mrreg
from helpers.architectures import ARCHITECTURES, build
from helpers.documents import ROOT

PAGE = ROOT / "docs" / "thin.md"
BEGIN, END = "<!-- groups:begin -->", "<!-- groups:end -->"
SHARES = ("Model", "From", "Groups", "Lose units", "Masked step", "Cycle of 5")
GROUPS = ("Model", "Groups", "Kind", "Found", "Lose units", "Why not")


def lines_of(name: str) -> list[str]:
    """The line of one architecture in the first table, then its lines in the second."""
    model, inputs = build(name)
    library = type(model).__module__.partition(".")[0]
    report = mrreg.thin(model, p=0.5, k=5, example_inputs=inputs)[1]
    admitted = sum(entry.admitted for entry in report.values())
    shares = f"{report.masked_share:.2f}", f"{report.cycle_share:.2f}"
    return [_line(f"`{name}`", library, len(report), admitted, *shares), *_group_lines(name, report)]


def _group_lines(name: str, report: mrreg.ThinReport) -> Iterator[str]:
    """One line for the groups that differ in numbers only, as those of the layers of a network do."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for group, entry in report.items():
        pattern = re.sub(r"\d+(?!\])", "*", group)
        alike.setdefault((pattern, entry.kind, re.sub(r"\d+", "#", entry.reason)), []).append(group)
    for (pattern, kind, _), groups in alike.items():
        first = report[groups[0]]
        called = pattern if len(groups) > 1 else groups[0]
        reason = first.reason.partition("\n")[0].replace("|", "\\|")
        yield _line(f"`{name}`", f"`{called}`", kind, len(groups), len(groups) * first.admitted, reason)


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def tables(lines: Mapping[str, list[str]]) -> str:
    """Both tables, from the lines of each architecture."""
    first = [each[0] for each in lines.values()]
    second = [line for each in lines.values() for line in each[1:]]
    made = [[_line(*head), "|---" * len(head) + "|", *rows] for head, rows in ((SHARES, first), (GROUPS, second))]
    return "\n\n".join("\n".join(table) for table in made)


def main() -> None:
    """Write both tables into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    written = tables({name: lines_of(name) for name in ARCHITECTURES})
    PAGE.write_text(f"{before}{BEGIN}\n{written}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
