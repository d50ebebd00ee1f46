"""The report of multirate fine-tuning beside other ways to make it cheap."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Row, Section, metric
from benchmarks.core.study_sections import Shown, differences
from benchmarks.experiments.text.peer_methods import FROZEN, FULL, HALF

COSTS = "costs"
PEERS = ("LoRA", "BAdam", "random layers")
CHANGING = ("half fast, k = 2 to 10", "half fast, k = 10 to 2", "half fast, adaptive k")
"""Methods of older records, which no longer run: nothing was gained by a k that changes."""
EPOCHS, SECONDS = "accuracy at equal epochs", "accuracy at equal seconds"

NOTE = (
    "SST-2, AdamW, batch 16, constant lr, no dropout, a linear layer on the mean output. The preset cpu fine-tunes "
    "MiniLM, on texts cut at 32 tokens, for the seconds of 32 steps of full fine-tuning, each seed with training texts "
    "of its own; accuracy is on all 872 dev texts. Multirate: the later three of six layers are fast, the rest has "
    "lr / k. LoRA (package peft): rank 8 on queries and values. BAdam (package badam): one layer at a time, 8 steps "
    "each. Random layers: two of six, drawn anew every 8 steps, and embeddings. Each method's lr is the better of two "
    "(the configuration's, 10 times that for LoRA, or 3 times these) by one trial on 400 training texts held out."
)
AT_SECONDS = (
    " Seconds are counted, not timed: every step is charged what a step cost when all methods took turns, in CPU "
    "seconds of one thread."
)


def sections(methods: Sequence[str]) -> tuple[Section, ...]:
    """Return the comparison at equal seconds and at equal epochs, the cost of a step, and memory."""
    shown = Shown(
        "SST-2, multirate and others", {method: method for method in methods},
        [(HALF, other) for other in (FULL, FROZEN, *PEERS)], note=NOTE, ylabel="dev accuracy [%]",
    )  # fmt: skip
    seconds, epochs = (replace(shown, facts=partial(facts, methods, name)) for name in (SECONDS, EPOCHS))
    return (
        seconds.section("equal seconds", SECONDS, note=AT_SECONDS),
        epochs.section("equal epochs", EPOCHS),
        shown.costs(
            "seconds of a step, full fine-tuning = 1",
            "Mean over the steps of the comparison at equal seconds. CPU seconds of one thread.",
        ),
        Section(
            "", "SST-2: memory beyond the weights", "MiB", digits=0,
            rows=tuple(Row(name, metric(COSTS, f"MiB, {name}")) for name in methods),
            note="The dearest of eight steps on one batch: what autograd saves, gradients, and the optimizer's tensors "
            "(on CUDA the peak that torch has allocated). Of multirate fine-tuning, that is a step in which all "
            "gradients come.",
        ),
    )  # fmt: skip


def facts(methods: Sequence[str], name: str, record: Record) -> list[str]:
    """Return every method minus full fine-tuning, everyone's lr, and what older records have of a k that changes."""
    others = [(method, FULL) for method in (*methods, *CHANGING) if method != FULL]
    rates = {method: record.numbers(method, "lr") for method in (*methods, *CHANGING)}
    chosen = [f"{method} {next(iter(lrs.values())):g}" for method, lrs in rates.items() if lrs]
    old = {method: stats.summarize(record.numbers(method, name).values()) for method in CHANGING}
    means = [f"{method} {each.mean:.2f} +- {each.half:.2f} %" for method, each in old.items() if each.n]
    return [
        *differences(record, others, name),
        *([f"Chosen lr: {'; '.join(chosen)}."] if chosen else []),
        *([f"A k that changes, in this record only: {'; '.join(means)}."] if means else []),
    ]
