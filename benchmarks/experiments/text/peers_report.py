"""What the report shows of multirate fine-tuning beside other ways to make fine-tuning cheap."""

from collections.abc import Sequence

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Claim, Row, Section, gain, metric

FULL, FROZEN, HALF = "full fine-tuning", "lower half frozen", "half fast, k = 5"
PEERS = ("LoRA", "BAdam", "random layers")
ADAPTIVE = "half fast, adaptive k"
CHANGING = ("half fast, k = 2 to 10", "half fast, k = 10 to 2", ADAPTIVE)
EPOCHS, SECONDS = "accuracy at equal epochs", "accuracy at equal seconds"

NOTE = (
    "SST-2, AdamW, batch 16, constant lr, no dropout, a linear layer on the mean output. The preset cpu fine-tunes "
    "MiniLM, on texts cut at 32 tokens, for the seconds of 32 steps of full fine-tuning, each seed with training texts "
    "of its own; accuracy is on all 872 dev texts. Multirate: the later three of six layers are fast, the rest has "
    "lr / k. LoRA (package peft): rank 8 on queries and values. BAdam (package badam): one layer at a time, 8 steps "
    "each. Random layers: two of six, drawn anew every 8 steps, and embeddings. Each method's lr is the better of two "
    "(the configuration's, 10 times that for LoRA, or 3 times these) by one trial on 400 training texts held out; a "
    "changing k takes the lr of k = 5."
)
AT_SECONDS = (
    " Seconds are counted, not timed: every step is charged what a step of its kind cost when all methods took turns, "
    "in CPU seconds of one thread."
)


def sections(methods: Sequence[str]) -> tuple[Section, ...]:
    """The comparison at equal seconds and at equal epochs, then what a step costs."""
    return (
        _comparison(methods, SECONDS, "equal seconds", NOTE + AT_SECONDS),
        _comparison(methods, EPOCHS, "equal epochs", NOTE + " A changing k has gone only a part of its way."),
        Section(
            "", "SST-2: seconds of a step, full fine-tuning = 1",
            rows=tuple(Row(name, metric(name, "relative cost")) for name in methods),
            note="Mean over the steps of the comparison at equal seconds. CPU seconds of one thread.",
        ),
        Section(
            "", "SST-2: memory beyond the weights", "MiB", digits=0,
            rows=tuple(
                Row(name, metric("costs", f"MiB, {name}")) for name in methods if name not in CHANGING
            ),
            note="The dearest of eight steps on one batch: what autograd saves, gradients, and the optimizer's tensors "
            "(on CUDA the peak that torch has allocated). For multirate that is a step in which all gradients come.",
        ),
    )  # fmt: skip


def _comparison(methods: Sequence[str], name: str, words: str, note: str) -> Section:
    return Section(
        "", f"SST-2, multirate and others: {words}", "%",
        rows=tuple(Row(method, metric(method, name)) for method in methods),
        claims=(
            *(Claim(f"{HALF}: better than {other}", gain(HALF, other, name)) for other in (FULL, FROZEN, *PEERS)),
            *(Claim(f"{other}: better than {HALF}", gain(other, HALF, name)) for other in CHANGING),
        ),
        plots=(Bars("dev accuracy [%]"),), note=note,
        facts=lambda record: [*_differences(record, methods, name), *_rates(record, methods), *_cosines(record)],
    )  # fmt: skip


def _differences(record: Record, methods: Sequence[str], name: str) -> list[str]:
    """Every method minus full fine-tuning, with intervals."""
    done = [method for method in methods if method != FULL and record.results(method)]
    return [stats.sentence(method, FULL, gain(method, FULL, name)(record), "points") for method in done]


def _rates(record: Record, methods: Sequence[str]) -> list[str]:
    """Which lr each method got."""
    known = {method: record.numbers(method, "lr") for method in methods}
    said = [f"{method} {next(iter(rates.values())):g}" for method, rates in known.items() if rates]
    return [f"Chosen lr: {'; '.join(said)}."] if said else []


def _cosines(record: Record) -> list[str]:
    """What the adaptive k went by."""
    found = stats.summarize(record.numbers(ADAPTIVE, "mean cosine").values())
    k = stats.summarize(record.numbers(ADAPTIVE, "mean k").values())
    if not found.n:
        return []
    return [
        f"Adaptive k: the cosine of held direction and fresh gradient is {found.mean:+.3f} +- {found.half:.3f} on "
        f"average (95 % interval over the seeds), its k {k.mean:.1f}."
    ]
