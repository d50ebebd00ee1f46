"""What the report shows of fine-tuning at equal seconds."""

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Claim, Row, Section, gain, metric
from benchmarks.experiments.text.seconds_points import COMPARED, FULL, HALF, HALF_FAST, PAPERS, POINTS, Point

REFERENCE, FROZEN = Point(FULL).name, Point(HALF).name
BEST = "two rates, best other point of the map"
LONG = "long budget, "
SECONDS, EPOCHS = "equal seconds", "equal epochs"

NOTE = (
    "SST-2, one linear layer on the mean output of the encoder, constant lr, no weight decay, no dropout. Equal "
    "seconds are CPU seconds of one thread, by the cost of a step measured with all methods in turns. The preset cpu "
    "fine-tunes MiniLM with batch 16 on texts cut at 32 tokens (lr: AdamW 5e-5, SGD 2e-3 with momentum 0.9) and gives "
    "each method the seconds of 40 steps of full fine-tuning with AdamW (short budget 12, long 120). "
)


def sections() -> tuple[Section, ...]:
    """The comparisons at equal seconds and at equal epochs, the map, and what a step costs."""
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
    methods = (*COMPARED, BEST)
    return Section(
        "",
        f"Fine-tuning on SST-2: {title}",
        "%",
        rows=tuple(Row(_label(method), metric(f"{prefix}{method}", name)) for method in methods),
        claims=tuple(
            Claim(f"{_label(method)}: better than {other}", gain(f"{prefix}{method}", f"{prefix}{other}", name))
            for method in (Point(HALF_FAST).name, Point(PAPERS).name, BEST)
            for other in (REFERENCE, FROZEN)
        ),
        plots=(Bars("dev accuracy [%]"),),
        note=NOTE + "All 872 dev texts; seeds draw the order of the texts and the classifier.",
        facts=lambda record: [*differences(record, name, prefix), *_chosen(record)],
    )


def _label(method: str) -> str:
    """Return a method's name in words; the record's name for the best point stays as it was saved."""
    return "multirate, best other point of the map" if method == BEST else method


def differences(record: Record, name: str, prefix: str = "") -> list[str]:
    """Each method minus full fine-tuning and minus the frozen half, with intervals."""
    return [
        stats.sentence(_label(method), other, values, "points")
        for other in (REFERENCE, FROZEN)
        for method in (*COMPARED, BEST)
        if method != other and (values := gain(f"{prefix}{method}", f"{prefix}{other}", name)(record))
    ]


def _chosen(record: Record) -> list[str]:
    recipes = sorted({result["recipe"] for result in record.results(BEST).values()})
    return [f"Best other point of the map: {', '.join(recipes)}."] if recipes else []


def _map(name: str) -> Section:
    return Section(
        "",
        f"Map of recipes at equal seconds, {name} budget",
        "%",
        digits=1,
        rows=tuple(Row(point, metric(f"map, {point}", name)) for point in POINTS),
        note=NOTE + "One seed, on 400 training texts held out (standard error about two points): for choosing only.",
    )


def _costs() -> Section:
    return Section(
        "",
        "What a fine-tuning step costs: full fine-tuning with AdamW, batch 16, = 1",
        center="median",
        rows=tuple(Row(point, metric(f"map, {point}", "relative cost")) for point in POINTS),
        note="CPU seconds of one thread, mean over ten steps (whole cycles), median of the rounds.",
    )
