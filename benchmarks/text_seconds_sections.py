"""What the report shows of fine-tuning at equal seconds."""

from collections.abc import Sequence

from benchmarks import stats
from benchmarks.records import Record
from benchmarks.sections import Bars, Claim, Row, Section, gain, metric

REFERENCE = "AdamW: full fine-tuning"
HALF = "AdamW: lower half frozen"
BEST = "two rates, best of the map"
SECONDS, EPOCHS = "equal seconds", "equal epochs"

NOTE = (
    "SST-2, one linear layer on the mean output of the encoder, constant lr (AdamW 5e-5, SGD 1e-3 with momentum 0.9), "
    "batch 16, texts cut at 32 tokens, no dropout. Equal seconds are CPU seconds of one thread: the preset cpu "
    "(MiniLM) gives each method the seconds of 72 steps of full fine-tuning with AdamW (short budget: 24), by the cost "
    "of a step measured with all methods in turns. "
)


def sections(points: Sequence[str], compared: Sequence[str]) -> tuple[Section, ...]:
    """The comparison at equal seconds and at equal epochs, the map, and what a step costs."""
    return (
        *(_comparison(compared, name, title) for name, title in (
            (SECONDS, "Fine-tuning on SST-2 at equal seconds"),
            (EPOCHS, "Fine-tuning on SST-2 at equal epochs"),
        )),
        *(_map(points, name) for name in ("short", "long")),
        _costs(points, compared),
    )  # fmt: skip


def _comparison(methods: Sequence[str], name: str, title: str) -> Section:
    return Section(
        "", title, "%",
        rows=tuple(Row(method, metric(method, name)) for method in methods),
        claims=tuple(
            Claim(f"{method}: better than {other}", gain(method, other, name))
            for method in methods for other in (REFERENCE, HALF) if other != method
        ),
        plots=(Bars("dev accuracy [%]"),),
        note=NOTE + "All 872 dev texts; seeds draw the order of the texts and the classifier.",
        facts=lambda record: [*differences(record, methods, name), *_chosen(record)],
    )  # fmt: skip


def differences(record: Record, methods: Sequence[str], name: str) -> list[str]:
    """Each method minus full fine-tuning and minus the frozen half, with intervals."""
    return [
        stats.sentence(method, other, gain(method, other, name)(record), "points")
        for other in (REFERENCE, HALF)
        for method in methods
        if method != other and record.results(method) and record.results(other)
    ]


def _chosen(record: Record) -> list[str]:
    recipes = sorted({result["recipe"] for result in record.results(BEST).values()})
    return [f"Best of the map: {', '.join(recipes)}."] if recipes else []


def _map(points: Sequence[str], name: str) -> Section:
    return Section(
        "", f"Map of recipes at equal seconds, {name} budget", "%", digits=1,
        rows=tuple(Row(point, metric(f"map, {point}", name)) for point in points),
        note=NOTE + "One seed, on 400 training texts held out (standard error about two points): for choosing only.",
    )  # fmt: skip


def _costs(points: Sequence[str], compared: Sequence[str]) -> Section:
    return Section(
        "", "What a fine-tuning step costs: full fine-tuning with AdamW, batch 16, = 1", center="median",
        rows=(
            *(Row(point, metric(f"map, {point}", "relative cost")) for point in points),
            *(Row(method, metric(method, "relative cost")) for method in compared if method not in points),
        ),
        note="CPU seconds of one thread, mean over ten steps (whole cycles), median of the rounds.",
    )  # fmt: skip
