"""Multirate fine-tuning against what people use instead when it has to be cheap.

Goes beyond the paper. LoRA, BAdam, random layers and frozen layers on SST-2, with the same texts in the same batches,
each method's lr chosen among as many as everyone's, on training texts held out. All are compared after as many steps
as full fine-tuning has, and after as many as fit into its seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.core import stats
from benchmarks.core.comparison import Comparison, Costs, Job, Outcome
from benchmarks.core.records import Record, Result
from benchmarks.core.sections import Row, Section, metric
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown, differences
from benchmarks.core.training import Loop, Trainer
from benchmarks.experiments.text.memory import most_mib
from benchmarks.experiments.text.peer_methods import FROZEN, FULL, HALF, METHODS, RATES, SWITCH, Peer, search
from benchmarks.experiments.text.recipes import SstConfig

COSTS = "costs"
PEERS = ("LoRA", "BAdam", "random layers")
CHANGING = ("half fast, k = 2 to 10", "half fast, k = 10 to 2", "half fast, adaptive k")
"""Methods of older records, which no longer run: nothing was gained by a k that changes."""
EPOCHS, SECONDS = "accuracy at equal epochs", "accuracy at equal seconds"


@dataclass(frozen=True, kw_only=True)
class PeersConfig(SstConfig):
    """`steps` are those of full fine-tuning, whose seconds are everyone's."""

    steps: int
    turns: int  # of the timing
    trials: int = len(RATES)
    lr: float = 5e-5


PRESETS = {
    "smoke": PeersConfig(
        seeds=1, encoder="minilm", steps=1, held_out=8, turns=1, cycle=1, trials=1, pool=64, dev=8, longest=8, batch=4
    ),
    "cpu": PeersConfig(seeds=8, encoder="minilm", steps=32, held_out=400, turns=5, pool=20_000),
    "gpu": PeersConfig(seeds=10, encoder="distilbert", steps=1000, held_out=2000, turns=5, lr=2e-5, longest=64),
}
PRESETS["paper"] = PRESETS["gpu"]


def comparisons(config: PeersConfig) -> list[Comparison[Peer]]:
    """Return the one comparison, its trials at equal seconds."""
    costs = Costs[Peer](FULL, config.turns, config.cycle, COSTS)
    return [Comparison(METHODS, config.seeds, (config.steps,), costs, search(config.lr, config.trials))]


def build(config: PeersConfig, peer: Peer, seed: int, job: Job) -> Loop:
    """Return the training by a method; trials leave out the texts on which they are judged."""
    return config.training(lambda net: peer.prepare(net, peer.lr, seed), seed, job, held_out=job.what == "trial")


def result(config: PeersConfig, outcome: Outcome[Peer]) -> Result:
    """Return accuracy after the steps of full fine-tuning, and after as many as fit into its seconds."""
    if outcome.what == "trial":
        return {"held out": outcome.last(), **outcome.options}
    return {
        "accuracy at equal epochs": outcome.at_steps()[-1],
        "accuracy at equal seconds": outcome.at_seconds()[-1],
        "steps at equal seconds": outcome.equal[-1],
        "relative cost": outcome.relative,
        **outcome.options,
    }


def memory(trainers: Mapping[str, Trainer]) -> Result:
    """Return the most memory that each method takes, on the longest of some batches."""
    loops = {name: each for name, each in trainers.items() if isinstance(each, Loop)}
    return {f"MiB, {name}": most_mib(each, SWITCH) for name, each in loops.items()}


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


def facts(name: str, record: Record) -> list[str]:
    """Return every method minus full fine-tuning, everyone's lr, and what older records have of a k that changes."""
    others = [(method, FULL) for method in (*METHODS, *CHANGING) if method != FULL]
    rates = {method: record.numbers(method, "lr") for method in (*METHODS, *CHANGING)}
    chosen = [f"{method} {next(iter(lrs.values())):g}" for method, lrs in rates.items() if lrs]
    old = {method: stats.summarize(record.numbers(method, name).values()) for method in CHANGING}
    means = [f"{method} {each.mean:.2f} +- {each.half:.2f} %" for method, each in old.items() if each.n]
    return [
        *differences(record, others, name),
        *([f"Chosen lr: {'; '.join(chosen)}."] if chosen else []),
        *([f"A k that changes, in this record only: {'; '.join(means)}."] if means else []),
    ]


SHOWN = Shown(
    "SST-2, multirate and others", {method: method for method in METHODS},
    [(HALF, other) for other in (FULL, FROZEN, *PEERS)], note=NOTE, ylabel="dev accuracy [%]",
)  # fmt: skip
SECTIONS = (
    replace(SHOWN, facts=partial(facts, SECONDS)).section("equal seconds", SECONDS, note=AT_SECONDS),
    replace(SHOWN, facts=partial(facts, EPOCHS)).section("equal epochs", EPOCHS),
    SHOWN.costs(
        "seconds of a step, full fine-tuning = 1",
        "Mean over the steps of the comparison at equal seconds. CPU seconds of one thread.",
    ),
    Section(
        "", "SST-2: memory beyond the weights", "MiB", digits=0,
        rows=tuple(Row(name, metric(COSTS, f"MiB, {name}")) for name in METHODS),
        note="The dearest of eight steps on one batch: what autograd saves, gradients, and the optimizer's tensors "
        "(on CUDA the peak that torch has allocated). Of multirate fine-tuning, that is a step in which all "
        "gradients come.",
    ),
)  # fmt: skip
STUDY = Study("text-peers", PRESETS, comparisons, build, result=result, measure=memory, data="SST-2")
BENCHMARK = STUDY.benchmark(SECTIONS)
