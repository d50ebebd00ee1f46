"""The report of fine-tuning at equal seconds."""

from collections.abc import Mapping

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Row, Section, gain, metric
from benchmarks.core.study_sections import Shown
from benchmarks.experiments.text.seconds_points import COMPARED, FULL, HALF, HALF_FAST, PAPERS, POINTS, Point

REFERENCE, FROZEN = Point(FULL).name, Point(HALF).name
BEST, BEST_LABEL = "two rates, best other point of the map", "multirate, best other point of the map"
LONG = "long budget, "
SECONDS, EPOCHS = "equal seconds", "equal epochs"

NOTE = (
    "SST-2, one linear layer on the mean output of the encoder, constant lr, no weight decay, no dropout. Equal "
    "seconds are CPU seconds of one thread, by the cost of a step measured with all methods in turns. The preset cpu "
    "fine-tunes MiniLM with batch 16 on texts cut at 32 tokens (lr: AdamW 5e-5, SGD 2e-3 with momentum 0.9) and gives "
    "each method the seconds of 40 steps of full fine-tuning with AdamW (short budget 12, long 120). "
)


def sections() -> tuple[Section, ...]:
    """Return the comparisons at equal seconds and at equal epochs, the map, and the cost of a step."""
    return (
        _comparison(SECONDS, "", "equal seconds"),
        _comparison(EPOCHS, "", "equal epochs"),
        _comparison(SECONDS, LONG, "equal seconds, three times as long"),
        _comparison(EPOCHS, LONG, "equal epochs, three times as long"),
        _map("short"),
        _map("middle"),
        _costs(),
    )


def _comparison(name: str, prefix: str, title: str) -> Section:
    methods = {method: f"{prefix}{method}" for method in COMPARED} | {BEST_LABEL: f"{prefix}{BEST}"}
    ours = (Point(HALF_FAST).name, Point(PAPERS).name, BEST_LABEL)
    shown = Shown(
        "Fine-tuning on SST-2", methods, [(method, other) for method in ours for other in (REFERENCE, FROZEN)],
        note=NOTE + "All 872 dev texts; seeds draw the order of the texts and the classifier.",
        facts=lambda record: [*_differences(record, name, methods), *_chosen(record)], ylabel="dev accuracy [%]",
    )  # fmt: skip
    return shown.section(title, name)


def _differences(record: Record, name: str, methods: Mapping[str, str]) -> list[str]:
    """Return each method minus full fine-tuning and minus the frozen half, with intervals."""
    return [
        stats.sentence(label, other, values, "points")
        for other in (REFERENCE, FROZEN)
        for label, method in methods.items()
        if label != other and (values := gain(method, methods[other], name)(record))
    ]


def _chosen(record: Record) -> list[str]:
    recipes = sorted({result["recipe"] for result in record.results(BEST).values()})
    return [f"Best other point of the map: {', '.join(recipes)}."] if recipes else []


def _rows(name: str) -> tuple[Row, ...]:
    return tuple(Row(point, metric(f"map, {point}", name)) for point in POINTS)


def _map(name: str) -> Section:
    return Section(
        "", f"Map of recipes at equal seconds, {name} budget", "%", digits=1, rows=_rows(name),
        note=NOTE + "One seed, on 400 training texts held out (standard error about two points): for choosing only.",
    )  # fmt: skip


def _costs() -> Section:
    return Section(
        "", "Cost of a fine-tuning step: full fine-tuning with AdamW, batch 16, = 1", center="median",
        rows=_rows("relative cost"),
        note="CPU seconds of one thread, mean over ten steps (whole cycles), median of the rounds.",
    )  # fmt: skip
