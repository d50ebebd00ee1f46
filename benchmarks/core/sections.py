"""The report of a record as data: one section for each table or figure of the paper."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from benchmarks.core import stats
from benchmarks.core.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Callable[[Record], Sequence[float]]
"""Takes the numbers behind one row or claim out of a record, one number a seed (or repeat)."""


def metric(method: str, name: str) -> Values:
    """Return a number of a method's results, one a seed."""
    return lambda record: list(record.numbers(method, name).values())


def gain(method: str, over: str, name: str) -> Values:
    """Return a number with `method` minus that with `over`, paired by seed."""
    return lambda record: stats.paired(record.numbers(method, name), record.numbers(over, name))


def below(method: str, name: str, bound: float) -> Values:
    """Return how far a number lies below a bound, one a seed (or repeat)."""
    return lambda record: [bound - value for value in record.numbers(method, name).values()]


def above(method: str, name: str, bound: float) -> Values:
    """Return how far a number lies above a bound, one a seed (or repeat)."""
    return lambda record: [value - bound for value in record.numbers(method, name).values()]


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
class Drawing:
    """Any other plot: `draw` fills an empty figure, and returns False where the record has nothing to draw."""

    title: str
    draw: "Callable[[Record, Figure], bool]"


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
    plots: tuple[Curves | Bars | Drawing, ...] = ()  # what one would show in a talk
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
