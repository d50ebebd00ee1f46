"""Two rates against what people use instead when fine-tuning has to be cheap, and against a k that changes.

Goes beyond the paper. LoRA, BAdam, random layers and frozen layers on SST-2, with the same texts in the same batches,
each method's lr chosen among as many as everyone's, on training texts held out. What a step of each kind costs is
measured first; then all are compared after as many steps as full fine-tuning has, and after as many as fit into its
seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from benchmarks.core.records import Record, Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.data import Task, batches
from benchmarks.experiments.text.peer_costs import Cost, Meter, most_bytes, step_costs
from benchmarks.experiments.text.peer_methods import SWITCH, Prepare, block_adam, low_rank, random_layers, recipe
from benchmarks.experiments.text.peers_report import EPOCHS, SECONDS, sections
from benchmarks.experiments.text.schedules import Noted, adaptive, schedule
from benchmarks.experiments.text.training import Trainee, accuracy

COST = "costs"
SEARCH_SEED = 1000  # shares its texts and its classifier with no seed of the comparison
RATES = (1.0, 3.0)  # times the lr of the configuration
LORA_RATE = 10.0  # LoRA wants about ten times the lr of full fine-tuning


@dataclass(frozen=True)
class Peer:
    """A method of the comparison.

    Args:
        prepare: What makes a `Trainee`.
        like: The method whose lr and costs of a step it takes; None: its own.
        rate: Multiplies all its candidates for the lr.
    """

    prepare: Prepare
    like: str | None = None
    rate: float = 1.0


def _half(k: int) -> Prepare:
    return recipe(fast="half", k=k, slow_lr="per_gradient")


HALF = "half fast, k = 5"
METHODS = {
    "full fine-tuning": Peer(recipe()),
    HALF: Peer(_half(5)),
    "lower half frozen": Peer(recipe(trained="half")),
    "LoRA": Peer(low_rank, rate=LORA_RATE),
    "BAdam": Peer(block_adam),
    "random layers": Peer(random_layers),
    "half fast, k = 2 to 10": Peer(schedule(2, 10), like=HALF),
    "half fast, k = 10 to 2": Peer(schedule(10, 2), like=HALF),
    "half fast, adaptive k": Peer(adaptive, like=HALF),
}
assert all(peer.like is None or METHODS[peer.like].like is None for peer in METHODS.values())


@dataclass(frozen=True)
class PeersConfig:
    """What all methods share; `steps` are those of full fine-tuning, whose seconds are everyone's."""

    seeds: int
    encoder: str
    steps: int
    held_out: int
    passes: int  # of the timing, over `timed` batches; five give each batch one step with all gradients at k = 5
    timed: int = SWITCH
    trials: int = len(RATES)
    pool: int | None = None
    dev: int | None = None
    lr: float = 5e-5
    longest: int = 32
    batch: int = 16


PRESETS = {
    "smoke": PeersConfig(
        seeds=1, encoder="minilm", steps=1, held_out=8, passes=1, timed=5, trials=1, pool=64, dev=8, longest=8, batch=4
    ),
    "cpu": PeersConfig(seeds=8, encoder="minilm", steps=32, held_out=400, passes=5, pool=20_000),
    "gpu": PeersConfig(
        seeds=10, encoder="distilbert", steps=1000, held_out=2000, passes=12, lr=2e-5, longest=64
    ),
}  # fmt: skip
PRESETS["paper"] = PRESETS["gpu"]


@dataclass(frozen=True)
class Job:
    """What one run does: all costs, the trial of one lr, or one method of the comparison."""

    what: str
    name: str = ""
    lr: float = 0.0


def runs(config: PeersConfig) -> list[Run]:
    """The costs, the trials, then the comparison seed by seed."""
    found = [Run(COST, (0,), Job(COST))]
    for rate in RATES[: config.trials]:
        for name, peer in METHODS.items():
            if peer.like is None:
                lr = config.lr * peer.rate * rate
                found.append(Run(trial(name, lr), (SEARCH_SEED,), Job("trial", name, lr)))
    return found + [Run(name, (seed,), Job("compare", name)) for seed in range(config.seeds) for name in METHODS]


def trial(name: str, lr: float) -> str:
    """How the trial of an lr is called in the record."""
    return f"lr {lr:g}, {name}"


def chosen(record: Record, name: str) -> float:
    """The lr with which a method does best on the texts held out."""
    name = METHODS[name].like or name
    found: dict[float, float] = {}
    for rate in RATES:
        lr = record.config["lr"] * METHODS[name].rate * rate
        for result in record.results(trial(name, lr)).values():
            found[lr] = result["held out"]
    return max(found, key=found.__getitem__)


def execute(config: PeersConfig, run: Run, context: Context) -> Sequence[Result]:
    """The costs, a trial, or one method and seed of the comparison."""
    job: Job = run.options
    (seed,) = run.seeds
    whole = text_data.load("SST-2", config.encoder, config.longest, context.data_dir, config.pool)
    task = Task(whole.train.to(context.device), whole.dev[: config.dev].to(context.device), whole.classes)
    if job.what == COST:
        return [_costs(config, task, context)]
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    if job.what == "trial":
        held, rest = task.train[order[: config.held_out]], task.train[order[config.held_out :]]
        reached = _train(config, job.name, job.lr, Task(rest, held, task.classes), seed, context, at_steps=False)
        return [{"held out": reached[SECONDS], "lr": job.lr}]
    lr = chosen(context.record, job.name)
    return [{**_train(config, job.name, lr, task, seed, context), "lr": lr}]


def _costs(config: PeersConfig, task: Task, context: Context) -> Result:
    """Seconds of a step by kind, and the most MiB, of each method with its own costs."""
    drawn = list(islice(batches(task.train, config.batch, torch.Generator().manual_seed(0)), config.timed))
    own = [name for name, peer in METHODS.items() if peer.like is None]
    trainees = {name: _trainee(config, name, config.lr, task.classes, 0, context) for name in own}
    seconds = step_costs(trainees, drawn, config.passes)
    longest = max(drawn, key=lambda batch: batch[0].numel())
    return {"seconds": seconds} | {
        f"MiB, {name}": most_bytes(trainee, longest, config.timed) for name, trainee in trainees.items()
    }


def _trainee(
    config: PeersConfig, name: str, lr: float, classes: int, seed: int, context: Context, meter: Meter | None = None
) -> Trainee:
    net = text_model.encoder(config.encoder, classes, seed).to(context.device)
    return METHODS[name].prepare(net, lr, seed, meter.progress if meter else lambda: 0.0)


def cost_of(record: Record, name: str) -> Cost:
    """Seconds of a step of a method by kind."""
    return dict(record.results(COST)[0]["seconds"][METHODS[name].like or name])


def _train(
    config: PeersConfig, name: str, lr: float, task: Task, seed: int, context: Context, at_steps: bool = True
) -> dict[str, float]:
    """Accuracy after the steps of full fine-tuning (if `at_steps`), and after as many as fit into its seconds."""
    full = cost_of(context.record, "full fine-tuning")["full"]
    meter = Meter(cost_of(context.record, name), config.steps * full)
    trainee = _trainee(config, name, lr, task.classes, seed, context, meter)
    drawn = batches(task.train, config.batch, torch.Generator().manual_seed(seed))
    found: dict[str, float] = {}
    wanted = 2 if at_steps else 1
    while True:
        ends = {SECONDS: meter.is_full(trainee.optimizer), EPOCHS: at_steps and meter.steps == config.steps}
        new = [end for end, is_here in ends.items() if is_here and end not in found]
        if new:
            found |= dict.fromkeys(new, accuracy(trainee.model, task.dev))
        if SECONDS in new:
            found["steps at equal seconds"] = meter.steps
            found["relative cost"] = meter.spent / meter.steps / full
        if sum(end in found for end in ends) == wanted:
            return found | (trainee.notes() if isinstance(trainee, Noted) else {})
        meter.step(trainee, next(drawn))


BENCHMARK = Benchmark("text-peers", PRESETS, runs, execute, sections(tuple(METHODS)))
