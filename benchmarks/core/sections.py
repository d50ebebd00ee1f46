"""The report of a record as data: one section for each table or figure of the paper, and those of any study."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.core import stats
from benchmarks.core.comparison import Search, named
from benchmarks.core.records import Record

Values = Callable[[Record], Sequence[float]]
"""Takes the numbers behind one row or claim out of a record, one number a seed (or repeat)."""


def metric(method: str, name: str) -> Values:
    """Return a number of a method's results, one a seed."""
    return lambda record: list(record.numbers(method, name).values())


def gain(method: str, over: str, name: str) -> Values:
    """Return a number with `method` minus that with `over`, paired by seed."""
    return lambda record: stats.paired(record.numbers(method, name), record.numbers(over, name))


def times(method: str, over: str, name: str) -> Values:
    """Return a number with `over` divided by that with `method`, paired by seed: how many times as fast, in seconds."""

    def values(record: Record) -> list[float]:
        ours, theirs = record.numbers(method, name), record.numbers(over, name)
        return [theirs[seed] / ours[seed] for seed in sorted(ours.keys() & theirs.keys())]

    return values


@dataclass(frozen=True)
class Paper:
    """A number of the paper: its mean, and smallest and largest where the paper gives them."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    """One line of a table: what it is called, how ours is computed, what the paper has."""

    label: str
    values: Values
    paper: Paper | None = None


def rows(
    methods: Iterable[str], name: str, papers: Mapping[str, Paper] = {}, label: Callable[[str], str] = str
) -> tuple[Row, ...]:
    """Return one row a method for a number of the record, beside the paper's."""
    return tuple(Row(label(each), metric(each, name), papers.get(each)) for each in methods)


@dataclass(frozen=True)
class Claim:
    """A sentence that holds where the whole 95 % interval of `values` lies above `above`.

    "A is better than B" is `Claim("...", gain("A", "B", "accuracy"))`; where less is better, the other way round; "no
    worse by more than half a point" has above=-0.5.
    """

    text: str
    values: Values
    above: float = 0.0


@dataclass(frozen=True)
class Curves:
    """A plot of lists of numbers: a line (mean of the seeds) and a band (smallest to largest) for each method."""

    methods: Mapping[str, str]  # name in the legend -> method in the record
    metric: str  # the name of the lists in the results
    xlabel: str  # what the horizontal axis is
    ylabel: str  # what the vertical axis is
    # the name of the lists of horizontal coordinates (seconds), averaged over seeds; None counts 1, 2, 3
    x: str | None = None
    # the paper's numbers, drawn as dashed lines: name in the legend -> number
    references: Mapping[str, float] = field(default_factory=dict)
    ylim: tuple[float, float] | None = None  # what part of the vertical axis is worth showing, if not all


@dataclass(frozen=True)
class Bars:
    """A plot of the section's rows: our mean, its 95 % interval, each seed as a dot, the paper's number beside it."""

    ylabel: str
    ylim: tuple[float, float] | None = None


@dataclass(frozen=True)
class Section:
    """One table or figure."""

    item: str  # which one of `benchmarks.paper.ITEMS`; empty for what goes beyond the paper
    title: str  # what it shows
    unit: str = ""  # of the numbers in the rows ("%", "s", "")
    digits: int = 2  # how many decimals of them are shown
    # what is compared with the paper; seconds and their ratios want the median
    center: Literal["mean", "median"] = "mean"
    rows: tuple[Row, ...] = ()  # the table
    claims: tuple[Claim, ...] = ()  # what the paper (or this project) says of it, for the code to check
    plots: tuple[Curves | Bars, ...] = ()  # what one would show in a talk
    # how far our mean may be from the paper's to count as the same, in `unit`; None compares no numbers
    tolerance: float | None = None
    # which way a number of the rows has to differ from the paper's to be better
    better: Literal["higher", "lower"] = "higher"
    full: frozenset[str] = frozenset({"gpu", "paper"})  # presets that are as large as the paper's setting
    # presets in which numbers can be compared, network and data being the paper's; None is `full`
    comparable: frozenset[str] | None = None
    smaller: str = "smaller network and data"  # how the other presets differ from it, in a few words
    # presets whose records it shows, where not every preset has what it needs; None shows all
    presets: frozenset[str] | None = None
    needs: str = ""  # what the presets need that is not at hand everywhere; said where there is no record
    found: str = "measured"  # how its numbers were found, where nothing judges them ("computed")
    note: str = ""  # where our setting differs from the paper's, or what the paper leaves open
    # sentences computed from the record, such as what a search chose
    facts: Callable[[Record], Sequence[str]] = lambda record: ()


AT_SECONDS = (
    " Equal seconds are those of the baseline's steps, from the cost of a step measured with all methods in turns in "
    "one process."
)


@dataclass(frozen=True)
class Shown:
    """One comparison of a study, as the report shows it."""

    title: str  # of the task
    methods: Mapping[str, str]  # their labels, and their names in the record
    better: Sequence[tuple[str, str]] = ()  # pairs of labels: the claim is that the first is better than the second
    metric: str = "accuracy"  # of the study
    unit: str = "%"  # of the number
    digits: int = 2  # how many decimals of it are shown
    lower: bool = False  # less is better
    words: str = "more accurate than"  # for the claims
    note: str = ""  # on the setting
    facts: Callable[[Record, str], Sequence[str]] = lambda record, number: ()  # sentences on a number of the record
    presets: frozenset[str] | None = None  # as in `Section`
    ylabel: str = "test accuracy [%]"  # of the plots
    task: str = ""  # what is trained on what, in the tables of the documentation; empty stands in none
    against: Sequence[tuple[str, str]] = ()  # the pairs that stand there

    def rows(self, name: str) -> tuple[Row, ...]:
        """Return one row a method for a number of the record."""
        return tuple(Row(label, metric(method, name)) for label, method in self.methods.items())

    def section(self, how: str, name: str, curves: Curves | None = None, note: str = "", **more: Any) -> Section:
        """Return the comparison by one number of the record, with an interval for each claim."""

        def claim(one: str, other: str) -> Claim:
            pair = [self.methods[each] for each in ((other, one) if self.lower else (one, other))]
            return Claim(f"{one}: {self.words} {other}", gain(pair[0], pair[1], name))

        return Section(
            more.pop("item", ""), f"{self.title}: {how}", self.unit, self.digits, rows=self.rows(name),
            claims=(*more.pop("claims", ()), *(claim(*pair) for pair in self.better)),
            plots=(*([curves] if curves else []), Bars(self.ylabel)), note=self.note + note,
            facts=lambda record: self.facts(record, name), presets=self.presets, **more,
        )  # fmt: skip

    def sections(self, baseline: str) -> tuple[Section, ...]:
        """Return the comparison at equal steps, at equal seconds, and the cost of a step over that of the baseline."""
        at_seconds, label = f"{self.metric} at equal seconds", f"training time in steps of {baseline}"
        curves = Curves(self.methods, f"{self.metric} by time", label, self.ylabel, x="step")
        costs = f"{self.title}: seconds of a step, {baseline} = 1"
        return (
            self.section("equal steps", self.metric),
            self.section("equal seconds", at_seconds, curves, AT_SECONDS),
            Section("", costs, rows=self.rows("relative cost"), presets=self.presets),
        )


def searched(record: Record, search: Search, methods: Iterable[str], digits: int = 1, sign: int = 1) -> list[str]:
    """Return what was tried for each method, what it gave on validation data (`sign` times the score), what is used."""
    said = []
    for method in methods:
        chosen = search.chosen(record, method)
        tried = [
            f"{named(options)}: {sign * score:.{digits}f}{' (chosen)' if options == chosen else ''}"
            for options, score in search.tried(record, method)
        ]
        said += [f"Search on validation data, {method}: {'; '.join(tried)}."] if tried else []
    return said
