"""Multirate fine-tuning against what people use instead when it has to be cheap.

Goes beyond the paper. LoRA, BAdam, random layers and frozen layers on SST-2, with the same texts in the same batches,
each method's lr chosen among as many as everyone's, on training texts held out. All are compared after as many steps
as full fine-tuning has, and after as many as fit into its seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.core.comparison import Comparison, Costs, Job, Outcome
from benchmarks.core.records import Result
from benchmarks.core.study import Study
from benchmarks.core.training import Loop, Trainer
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.memory import most_mib
from benchmarks.experiments.text.peer_methods import FULL, METHODS, RATES, SWITCH, Peer, search
from benchmarks.experiments.text.peers_report import COSTS, sections
from benchmarks.experiments.text.training import loop


@dataclass(frozen=True)
class PeersConfig:
    """Settings that all methods share; `steps` are those of full fine-tuning, whose seconds are everyone's."""

    seeds: int
    encoder: str
    steps: int
    held_out: int
    turns: int  # of the timing
    cycle: int = 10  # steps of a turn: whole cycles of k
    trials: int = len(RATES)
    pool: int | None = None
    dev: int | None = None
    lr: float = 5e-5
    longest: int = 32
    batch: int = 16


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
    """Return the training of a freshly loaded encoder, in trials on all texts but those held out."""
    whole = text_data.load("SST-2", config.encoder, config.longest, job.data_dir, config.pool).to(job.device)
    task = whole.held_out(config.held_out, seed) if job.what == "trial" else whole
    net = text_model.encoder(config.encoder, task.classes, seed).to(job.device)
    splits = {"validation": task.dev, "test": task.dev[: config.dev]}
    return loop(peer.prepare(net, peer.lr, seed), task.train, config.batch, seed, splits)


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


STUDY = Study("text-peers", PRESETS, comparisons, build, result=result, measure=memory, data="SST-2")
BENCHMARK = STUDY.benchmark(sections(tuple(METHODS)))
