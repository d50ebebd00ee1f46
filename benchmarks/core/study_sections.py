"""The report of a study: methods at equal steps, at equal seconds, and the cost of their steps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.core import stats
from benchmarks.core.comparison import Search, named
from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Claim, Curves, Row, Section, gain, metric

Facts = Callable[[Record], Sequence[str]]
AT_SECONDS = (
    " Equal seconds are those of the baseline's steps, from the cost of a step measured with all methods in turns in "
    "one process."
)


@dataclass(frozen=True)
class Shown:
    """One comparison, as the report shows it."""

    title: str  # of the task
    methods: Mapping[str, str]  # their labels, and their names in the record
    better: Sequence[tuple[str, str]] = ()  # pairs of labels: the claim is that the first is better than the second
    metric: str = "accuracy"  # the name of the number in the record
    unit: str = "%"  # of the number
    digits: int = 2  # how many decimals of it are shown
    lower: bool = False  # less is better
    words: str = "better than"  # for the claims ("more accurate than")
    note: str = ""  # on the setting
    facts: Facts = field(default=lambda record: ())  # sentences computed from the record
    presets: frozenset[str] | None = None  # as in `Section`
    ylabel: str = "test accuracy [%]"  # of the plots

    def rows(self, name: str) -> tuple[Row, ...]:
        """Return one row a method for a number of the record."""
        return tuple(Row(label, metric(method, name)) for label, method in self.methods.items())

    def section(self, how: str, name: str, curves: Curves | None = None, note: str = "", item: str = "") -> Section:
        """Return the comparison by one number of the record, with an interval for each claim."""
        pairs = [(one, other, *((other, one) if self.lower else (one, other))) for one, other in self.better]
        return Section(
            item, f"{self.title}: {how}", self.unit, self.digits, rows=self.rows(name),
            claims=tuple(
                Claim(f"{one}: {self.words} {other}", gain(self.methods[more], self.methods[less], name))
                for one, other, more, less in pairs
            ),
            plots=(*([curves] if curves else []), Bars(self.ylabel)),
            note=self.note + note, facts=self.facts, presets=self.presets,
        )  # fmt: skip

    def costs(self, how: str, note: str = "") -> Section:
        """Return what a step costs, the baseline's being 1."""
        return Section("", f"{self.title}: {how}", rows=self.rows("relative cost"), note=note, presets=self.presets)


def study_sections(shown: Shown, baseline: str) -> tuple[Section, ...]:
    """Return the sections of a study that keeps `Study.default_result`.

    Args:
        shown: The comparison.
        baseline: The label of the method whose seconds everyone gets.
    """
    at_seconds = f"{shown.metric} at equal seconds"
    curves = Curves(
        shown.methods, f"{shown.metric} by time", f"training time in steps of {baseline}", shown.ylabel, x="step"
    )
    return (
        shown.section("equal steps", shown.metric),
        shown.section("equal seconds", at_seconds, curves, AT_SECONDS),
        shown.costs(f"seconds of a step, {baseline} = 1"),
    )


def differences(record: Record, pairs: Sequence[tuple[str, str]], name: str, unit: str = "points") -> list[str]:
    """Return paired differences of methods, in words, where both have run."""
    found = {pair: gain(*pair, name)(record) for pair in pairs}
    return [stats.sentence(*pair, values, unit) for pair, values in found.items() if values]


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
