"""One self-contained HTML page, Markdown for the documentation, and the excerpt in the README, from all records."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from benchmarks.core import stats
from benchmarks.core.errors import UserError
from benchmarks.core.records import Record
from benchmarks.core.registry import REGISTERED
from benchmarks.core.sections import Claim, Row, Section, Shown
from benchmarks.report import closed, headlines, verdict
from benchmarks.report import plots as report_plots
from benchmarks.report.paper import Item

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
PRESETS = ("paper", "gpu", "whole", "cpu")  # the largest first
Sources = Sequence[tuple[Record, Sequence[Section]]]
"""Records with what is to be shown of each."""


Formatted = Mapping[str, str]
"""A row of a table, or a claim with what was found, as text."""


@dataclass(frozen=True)
class Block:
    """One section as one record shows it, or as no record does."""

    title: str
    verdict: str
    scale: str
    made: str = ""
    missing: str = ""
    unit: str = ""
    center: str = "mean"
    tolerance: str = ""
    note: str = ""
    facts: Sequence[str] = ()
    lines: Sequence[Formatted] = ()
    claims: Sequence[Formatted] = ()
    plots: Sequence[tuple[str, str]] = ()

    @property
    def compared(self) -> bool:
        """Return whether the paper has a number for any row."""
        return any(line["paper"] for line in self.lines)


@dataclass(frozen=True)
class Chapter:
    """A table or figure of the paper, or a benchmark that goes beyond it, with what each record says."""

    item: str
    title: str
    missing: str
    group: str = "The paper"
    blocks: list[Block] = field(default_factory=list)

    @property
    def short(self) -> str:
        """The title without what the other chapters of its group begin with."""
        return self.heading if self.item else self.title.partition(": ")[2] or self.title

    @property
    def heading(self) -> str:
        return f"{self.item}. {self.title}" if self.item else self.title


def chapters(shown: Sources, items: Mapping[str, Item]) -> list[Chapter]:
    """Return every item of the paper in its order, then what goes beyond it; first what was run, then what was not."""
    made = {
        item: Chapter(
            item,
            about.title,
            f"Not run: python -m benchmarks {about.benchmark}" if about.benchmark else "Nothing to measure.",
        )
        for item, about in items.items()
    }
    ordered = sorted(shown, key=lambda pair: rank(pair[0]))
    looks = _looks(shown)
    for record, sections in ordered:
        for section in sections:
            if section.presets is None or record.preset in section.presets:
                key = section.item or f"{record.benchmark}: {section.title}"
                made.setdefault(key, Chapter("", section.title, "", record.benchmark)).blocks.append(
                    block(section, record, looks)
                )
    for benchmark, sections in {record.benchmark: sections for record, sections in ordered}.items():
        presets = {record.preset for record, _ in ordered if record.benchmark == benchmark}
        for section in sections:
            if section.item in made and section.presets and not section.presets & ({"smoke", "cpu"} | presets):
                made[section.item].blocks.append(_not_run(section, benchmark))
    return list(made.values())


def _looks(shown: Sources, cards: Sequence[headlines.Card] = headlines.CARDS) -> dict[str, report_plots.Look]:
    """Return the look of every method: the cards' methods get the clearest ones."""
    first = [label for card in cards for label in card.curves.methods]
    return report_plots.palette([*first, *report_plots.labels(section for _, each in shown for section in each)])


def rank(record: Record) -> int:
    """Return a record's place among those of its benchmark: the largest preset first."""
    return PRESETS.index(record.preset) if record.preset in PRESETS else len(PRESETS)


def block(section: Section, record: Record, looks: Mapping[str, report_plots.Look] | None = None) -> Block:
    """Return what one record says of one section."""
    tolerance = verdict.tolerance(section, record)
    return Block(
        title=section.title,
        made=made_with(record),
        verdict=verdict.summarize(section, record),
        scale=verdict.scale(section, record),
        unit=section.unit,
        center=section.center,
        tolerance="" if tolerance is None else f"{tolerance:g} {section.unit}".strip(),
        note=section.note,
        facts=list(section.facts(record)),
        lines=[_line(row, section, record) for row in section.rows],
        claims=[_checked(claim, section, record) for claim in section.claims],
        plots=report_plots.plots(section, record, looks),
    )


def _not_run(section: Section, benchmark: str) -> Block:
    """Return what is said of a section of the paper that no record shows."""
    assert section.presets is not None
    command = f"python -m benchmarks {benchmark} --preset {min(section.presets)}"
    why = f"needs {section.needs}: {command}" if section.needs else command
    return Block(section.title, f"{verdict.NOT_RUN}: {why}", "the paper's", missing=f"Not run: {why}")


def made_with(record: Record) -> str:
    """Name preset, seeds, device, versions, commit and date of a record in one line."""
    dirty = " with local changes" if any(record.distinct("dirty")) else ""
    commits = ", ".join(record.distinct("commit")) or "unknown"
    dates = record.distinct("date")
    parts = [
        f"python -m benchmarks {record.benchmark} --preset {record.preset}",
        f"{len(record.runs)} of {record.total} runs",
        f"seeds: {len(record.seeds)}",
        f"{record.device}, threads: {record.threads}",
        f"torch {record.versions['torch']}, mrreg {record.versions['mrreg']}",
        f"commit {commits}{dirty}",
        dates[-1] if dates else "no date",
    ]
    return " · ".join(parts)


def sources(found: Sequence[Record]) -> tuple[Sources, headlines.Shows]:
    """Return all records with their sections; then the largest of each benchmark, in their order, with comparisons."""
    known = {each.benchmark: REGISTERED[each.benchmark].load() for each in found if each.benchmark in REGISTERED}
    shown = [(each, known[each.benchmark].sections if each.benchmark in known else closed.sections(each))
             for each in found]  # fmt: skip

    def compared(record: Record) -> list[Shown]:
        every = known[record.benchmark].shown if record.benchmark in known else ()
        return [each for each in every if each.presets is None or record.preset in each.presets]

    largest = {each.benchmark: each for each in sorted(found, key=rank, reverse=True) if compared(each)}
    return shown, [(largest[name], compared(largest[name])) for name in REGISTERED if name in largest]


def write(
    title: str,
    intro: str,
    shown: Sources,
    shows: headlines.Shows,
    parts: Sequence[Chapter],
    out: Path,
    cards: Sequence[headlines.Card] = headlines.CARDS,
) -> list[Path]:
    """Write report.html, with cards, chapters and every record, and all numbers as numbers.csv."""
    judged = any(block.claims or block.compared for part in parts for block in part.blocks)
    looks = _looks(shown, cards)
    given: dict[str, Any] = {
        "title": title, "intro": intro, "chapters": parts, "rule": judged and verdict.RULE,
        "cards": headlines.cards(shows, looks, cards), "sources": [made_with(record) for record, _ in shown],
    }  # fmt: skip
    page, numbers = out / "report.html", out / "numbers.csv"
    _render(page, given)
    closed.table([record for record, _ in shown]).to_csv(numbers, index=False)
    return [page, numbers]


def write_docs(shown: Sources, shows: headlines.Shows, parts: Sequence[Chapter], out: Path) -> list[Path]:
    """Write results.md with its figure, results.svg, and the figure of the guide, when-it-helps.svg."""
    page, figure, guide = out / "results.md", out / "results.svg", out / "when-it-helps.svg"
    _render(page, {"chapters": parts, "rule": verdict.RULE, "excerpt": headlines.pairs(shows, headlines.EXCERPT, 1)})
    figure.write_bytes(headlines.picture(shows, _looks(shown)))
    guide.write_bytes(headlines.forest(shows))
    return [page, figure, guide]


def fill(page: Path, table: str) -> None:
    """Put a table between the two marks of a page, such as the README.

    Raises:
        UserError: If the marks are not there.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{page}: the page must have the lines {BEGIN} and {END}, got none. Add them.")
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")


def excerpt(shows: headlines.Shows) -> str:
    """Return the table of the README."""
    return _template("best.md.j2", best=headlines.against_best(shows))


def thin(shows: headlines.Shows) -> str:
    """Return what the records say of thin training, and of its variants and those of dropout, one row a task."""
    return _template("thin.md.j2", tables=[headlines.matrix(shows, variants) for variants in (False, True)])


def _template(name: str, **given: Any) -> str:
    return _environment().get_template(name).render(given).strip()


def _render(path: Path, given: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_environment().get_template(f"{path.name}.j2").render(given), encoding="utf-8")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=lambda name: bool(name and name.endswith(".html.j2")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["mark"] = _marked
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return environment


def _marked(text: str) -> Markup:
    """Set off the words of a verdict; those that none of the claims got stay plain."""
    words = rf"\d+ (?:of \d+ )?(?:{'|'.join(verdict.WORDS)})|^(?:{'|'.join(verdict.WORDS)})"

    def mark(found: re.Match[str]) -> str:
        name = found[0].split(" run")[0].split(" noise")[0].split()[-1]
        return found[0] if found[0].startswith("0 ") else f'<span class="tag {name}">{found[0]}</span>'

    return Markup(re.sub(words, mark, str(escape(text)), flags=re.IGNORECASE))


def _line(row: Row, section: Section, record: Record) -> Formatted:
    digits, paper = section.digits, row.paper
    theirs = "" if paper is None else f"{paper.mean:.{digits}f}"
    if paper and paper.low is not None and paper.high is not None:
        theirs += f" ({paper.low:.{digits}f} to {paper.high:.{digits}f})"
    line = {"label": row.label, "paper": theirs, "verdict": ""}
    summary = stats.summarize(row.values(record))
    if not summary.n:
        return line | {"ours": "diverged" if summary.lost else "not run", "spread": "", "runs": str(summary.lost)}
    ours = f"{verdict.center(row, section, record):.{digits}f}"
    if section.center == "mean" and summary.n > 1:
        ours += f" ± {summary.half:.{digits}f}"
    if row in verdict.compared(section, record):
        line["verdict"] = verdict.judge_number(row, section, record)
    runs = str(summary.n) + (f" ({summary.lost} more diverged)" if summary.lost else "")
    return line | {"ours": ours, "spread": f"{summary.low:.{digits}f} to {summary.high:.{digits}f}", "runs": runs}


def _checked(claim: Claim, section: Section, record: Record) -> Formatted:
    summary, digits = stats.summarize(claim.values(record)), section.digits
    low, high = summary.interval
    interval = f", 95 % interval {low:+.{digits}f} to {high:+.{digits}f}" if summary.n > 1 else ""
    bound = f" (bound {claim.above:+g})" if claim.above else ""
    found = f"{summary.mean:+.{digits}f}{interval}{bound}" if summary.n else ""
    return {"text": claim.text, "found": found, "said": verdict.judge(claim.values(record), claim.above)}
