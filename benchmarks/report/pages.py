"""One self-contained HTML page and one Markdown file from all records, and the table of the README."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jinja2

from benchmarks.core import stats
from benchmarks.core.errors import UserError
from benchmarks.core.records import Record
from benchmarks.core.registry import REGISTERED
from benchmarks.core.sections import Claim, Row, Section
from benchmarks.report import plots as report_plots
from benchmarks.report import verdict
from benchmarks.report.paper import Item

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
PRESETS = ("paper", "gpu", "cpu")  # the largest first
Shown = Sequence[tuple[Record, tuple[Section, ...]]]
"""Records with what is to be shown of each."""


@dataclass(frozen=True)
class Line:
    """A row of a table, formatted."""

    label: str
    paper: str
    ours: str
    spread: str
    runs: str


@dataclass(frozen=True)
class Checked:
    """A claim, what was found, and whether it holds."""

    text: str
    found: str
    said: str


@dataclass(frozen=True)
class Block:
    """One section as one record shows it."""

    title: str
    made: str
    verdict: str
    unit: str
    center: str
    tolerance: str
    note: str
    facts: Sequence[str]
    lines: Sequence[Line]
    claims: Sequence[Checked]
    plots: Sequence[tuple[str, str]]

    @property
    def word(self) -> str:
        """The verdict without its reasons, for a summary."""
        return self.verdict.partition(":")[0]

    @property
    def compared(self) -> bool:
        """Whether the paper has a number for any row."""
        return any(line.paper for line in self.lines)


@dataclass(frozen=True)
class Chapter:
    """A table or figure of the paper, or a benchmark that goes beyond it, with what each record says."""

    item: str
    title: str
    missing: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def heading(self) -> str:
        return f"{self.item}. {self.title}" if self.item else self.title


def chapters(shown: Shown, items: Mapping[str, Item]) -> list[Chapter]:
    """Every item of the paper in its order, then what goes beyond it."""
    made = {item: Chapter(item, about.title, _missing(about)) for item, about in items.items()}
    ordered = sorted(
        shown, key=lambda pair: PRESETS.index(pair[0].preset) if pair[0].preset in PRESETS else len(PRESETS)
    )
    for record, sections in ordered:
        for section in sections:
            if section.presets is not None and record.preset not in section.presets:
                continue
            key = section.item or f"{record.benchmark}: {section.title}"
            made.setdefault(key, Chapter("", section.title, "")).blocks.append(block(section, record))
    return list(made.values())


def block(section: Section, record: Record) -> Block:
    """What one record says of one section."""
    tolerance = "" if section.tolerance is None else f"{section.tolerance:g} {section.unit}".strip()
    return Block(
        title=section.title,
        made=made_with(record),
        verdict=str(verdict.judge(section, record)),
        unit=section.unit,
        center=section.center,
        tolerance=tolerance,
        note=section.note,
        facts=list(section.facts(record)),
        lines=[_line(row, section, record) for row in section.rows],
        claims=[_checked(claim, section, record) for claim in section.claims],
        plots=report_plots.plots(section, record),
    )


def made_with(record: Record) -> str:
    """Preset, seeds, device, versions, commit and date in one sentence."""
    dirty = " with local changes" if any(record.distinct("dirty")) else ""
    commits = ", ".join(record.distinct("commit")) or "unknown"
    dates = record.distinct("date")
    parts = [
        f"python -m benchmarks {record.benchmark} --preset {record.preset}",
        f"{len(record.runs)} of {record.total} runs",
        f"seeds {_ranges(record.seeds)}",
        f"{record.device}, threads: {record.threads}",
        f"torch {record.versions['torch']}, mrreg {record.versions['mrreg']}",
        f"commit {commits}{dirty}",
        dates[-1] if dates else "no date",
    ]
    return " · ".join(parts)


def _ranges(numbers: Sequence[int]) -> str:
    """0 to 9, 20, 30 to 31: sorted whole numbers in brief."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(
        f"{start}" if start == end else f"{start} to {end}" for start, end in zip(starts, ends, strict=True)
    )


def write(title: str, intro: str, shown: Shown, parts: Sequence[Chapter], out: Path) -> tuple[Path, Path]:
    """Write report.html and report.md: the chapters, and at the end every record, shown in one or not."""
    out.mkdir(parents=True, exist_ok=True)
    paths = out / "report.html", out / "report.md"
    judged = any(block.verdict != "measured" for part in parts for block in part.blocks)
    for path in paths:
        template = _environment().get_template(f"{path.name}.j2")
        sources = [made_with(record) for record, _ in shown]
        text = template.render(title=title, intro=intro, chapters=parts, rule=judged and verdict.RULE, sources=sources)
        path.write_text(text, encoding="utf-8")
    return paths


def fill_readme(readme: Path, parts: Sequence[Chapter]) -> None:
    """Put the summary table between the two marks of the README: of each section, the largest record.

    Raises:
        UserError: If the marks are not there.
    """
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{readme}: the README must have the lines {BEGIN} and {END}, got none. Add them.")
    largest = [replace(part, blocks=list({b.title: b for b in reversed(part.blocks)}.values())[::-1]) for part in parts]
    table = _environment().get_template("summary.md.j2").render(chapters=largest)
    readme.write_text(f"{before}{begin}\n{table.strip()}\n{end}{after}", encoding="utf-8")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=lambda name: bool(name and name.endswith(".html.j2")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return environment


def _missing(item: Item) -> str:
    if not item.benchmark:
        return "Nothing to measure."
    if item.benchmark not in REGISTERED:
        return "No benchmark yet."
    return f"No record yet: python -m benchmarks {item.benchmark}"


def _line(row: Row, section: Section, record: Record) -> Line:
    digits = section.digits
    paper = row.paper
    theirs = "" if paper is None else f"{paper.mean:.{digits}f}"
    if paper and paper.low is not None and paper.high is not None:
        theirs += f" ({paper.low:.{digits}f} to {paper.high:.{digits}f})"
    summary = stats.summarize(row.values(record))
    if not summary.n:
        return Line(row.label, theirs, "diverged" if summary.lost else "not yet", "", str(summary.lost))
    ours = f"{verdict.center(row, section, record):.{digits}f}"
    if section.center == "mean" and summary.n > 1:
        ours += f" ± {summary.half:.{digits}f}"
    runs = str(summary.n) + (f" ({summary.lost} more diverged)" if summary.lost else "")
    return Line(row.label, theirs, ours, f"{summary.low:.{digits}f} to {summary.high:.{digits}f}", runs)


def _checked(claim: Claim, section: Section, record: Record) -> Checked:
    summary = stats.summarize(claim.values(record))
    digits = section.digits
    low, high = summary.interval
    interval = f", 95 % interval {low:+.{digits}f} to {high:+.{digits}f}" if summary.n > 1 else ""
    bound = f" (bound {claim.above:+g})" if claim.above else ""
    found = f"{summary.mean:+.{digits}f}{interval}{bound}" if summary.n else ""
    return Checked(claim.text, found, verdict.judge_claim(claim, record))
