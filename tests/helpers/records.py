"""A record made by hand, and a section that shows all of it."""

from dataclasses import replace

from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Claim, Curves, Paper, Row, Section, gain, metric

ACCURACY = {"SGD": [90.0, 91.0, 92.0], "masks": [92.0, 93.1, 93.9]}


def record(preset: str = "paper", accuracy: dict[str, list[float]] = ACCURACY, benchmark: str = "mnist") -> Record:
    """Return a record with one number and one curve for each method and seed."""
    made = Record(benchmark, preset, {}, "cpu: test", 2, {"torch": "2", "mrreg": "0"}, 6)
    for method, values in accuracy.items():
        for seed, value in enumerate(values):
            curve = [value - 2, value - 1, value]
            made.add(f"{method} {seed}", method, (seed,), 1.0, [{"accuracy": value, "curve": curve, "s": [1, 2, 3]}])
    return made


BETTER = Claim("masks beat SGD", gain("masks", "SGD", "accuracy"))
WORSE = Claim("SGD beats masks", gain("SGD", "masks", "accuracy"))
ROWS = (
    Row("SGD", metric("SGD", "accuracy"), Paper(91.0)),
    Row("masks", metric("masks", "accuracy"), Paper(93.0, 92.5, 93.5)),
)
PLOTS = (
    Curves({"SGD": "SGD", "masks": "masks", "nobody": "nobody"}, "curve", "epoch", "accuracy (%)", None, {"98": 98.0}),
    Curves({"SGD": "SGD"}, "curve", "seconds", "accuracy (%)", x="s", ylim=(80, 100)),
    Bars("accuracy (%)"),
)
FULL = Section(
    "Table A5",
    "k < 5 & | more",
    "%",
    rows=ROWS,
    claims=(BETTER, WORSE),
    plots=PLOTS,
    tolerance=0.5,
    note="A <note>.",
    facts=lambda made: [f"Seeds: {len(made.seeds)}."],
)
PLAIN = replace(FULL, plots=())
