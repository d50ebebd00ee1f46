"""Does it pay to hold a subset of the units for k - 1 steps, and to take a joint step after them?

The networks and data of four studies at equal steps: three with three optimizers each, characters with AdamW. All
methods leave out a quarter of the hidden units and of the heads. Another question, on the first three, is what becomes
of an optimizer's momentum while units are absent: it is held, decays as by gradients of zero, or begins anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from benchmarks.core.comparison import Comparison, Job, evenly
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Shown
from benchmarks.core.study import Study, at_best_validation
from benchmarks.core.training import Loop
from benchmarks.experiments.regularizers import NONE, Method, Regularizers
from benchmarks.experiments.thin import chars, mnist, tabular, vit

TASKS: dict[str, Regularizers[Any]] = {
    "digits": mnist.STUDY, "table": tabular.STUDY, "vit": vit.STUDY, "characters": chars.STUDY,
}  # fmt: skip
NEW, NEW_K = "new units at every step", "new units every 5 steps"
JOINT, BOOSTED = "held for 4 steps, then a joint one", "held for 4 steps, then a joint one, boost 5"
DECAYS, RESET = f"{JOINT}, momentum of absent units decays", f"{JOINT}, momentum of absent units is zero"
QUARTER = 0.25
METHODS = {
    NONE: Method(),
    NEW: Method("thin", QUARTER, k=1, joint=False),
    NEW_K: Method("thin", QUARTER, joint=False),
    JOINT: Method("thin", QUARTER, boost=1.0),
    BOOSTED: Method("thin", QUARTER, boost=5.0),
    DECAYS: Method("thin", QUARTER, boost=1.0),
    RESET: Method("thin", QUARTER, boost=1.0),
}
SMALLER: dict[str, dict[str, Any]] = {"digits": {"width": 512}}
RATES = {  # each for plain training and for thin
    "digits": {"AdamW": 1e-3, "momentum": 0.02, "SGD": 0.1},
    "table": {"AdamW": 3e-4, "momentum": 0.02, "SGD": 0.1},
    "vit": {"AdamW": 1e-3, "momentum": 0.02, "SGD": 0.1},
    "characters": {"AdamW": 2e-3},  # SGD, with momentum or without, hardly gets beyond pairs of characters
}


@dataclass(frozen=True)
class Config:
    """How long each task is trained; `seeds` are those of the comparison."""

    seeds: int
    steps: tuple[tuple[str, int], ...]
    preset: str = "cpu"  # of the tasks
    points: int = 5


def comparisons(config: Config) -> list[Comparison[Method]]:
    return [
        Comparison(
            {name: replace(method, optimizer=optimizer, lr=RATES[task][optimizer])
             for name, method in METHODS.items()
             if (optimizer != "SGD" and task != "characters") or name not in (DECAYS, RESET)},
            config.seeds, evenly(steps, config.points), setting=task, prefix=f"{task}, {optimizer}: ",
            splits=("validation", "test"),
        )
        for optimizer in ("AdamW", "momentum", "SGD")
        for task, steps in config.steps
        if optimizer in RATES[task]
    ]  # fmt: skip


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    study = TASKS[job.setting]
    smaller = SMALLER.get(job.setting, {}) if config.preset == "cpu" else {}
    loop = study.build(replace(study.presets[config.preset], **smaller), method, seed, job)
    if job.name.endswith((DECAYS, RESET)):
        _let_go(loop.optimizer, job.name.endswith(RESET))
    return loop


def _let_go(optimizer: Optimizer, reset: bool) -> None:
    """Let the momentum of absent entries decay, Adam's second moment too, or set it to zero, after each masked step.

    Absent are those whose state a step has left as it was, to the bit.
    """
    before: dict[tuple[Tensor, str], Tensor] = {}

    def note(*_: Any) -> None:
        states = [(p, key, value) for p, state in optimizer.state.items() for key, value in state.items()]
        before.update({(p, key): value.clone() for p, key, value in states if key != "step"})

    def let_go(*_: Any) -> None:
        group = optimizer.param_groups[0]
        factors = dict(zip(("exp_avg", "exp_avg_sq"), group.get("betas", ()), strict=False))
        factors["momentum_buffer"] = group.get("momentum", 0.0)
        for (p, key), old in before.items():
            if not (reset and key == "exp_avg_sq"):
                state = optimizer.state[p][key]
                state[state == old] *= 0.0 if reset else factors[key]

    optimizer.register_step_pre_hook(note)
    optimizer.register_step_post_hook(let_go)


def shown(config: Config, preset: str) -> Sequence[Shown]:
    found = []
    for comparison in comparisons(config):
        study = TASKS[comparison.setting]
        unit = f"nats a {study.loss}"
        own: dict[str, Any] = {"metric": "loss", "unit": unit, "digits": 3, "lower": True} if study.loss else {}
        own |= {"ylabel": f"test loss [{unit}]", "words": "a smaller loss than"} if study.loss else {}
        pairs = [(JOINT, NEW), (JOINT, NEW_K), (BOOSTED, JOINT), (NEW, NONE), (JOINT, NONE)]
        pairs += [(JOINT, name) for name in (DECAYS, RESET) if name in comparison.methods]
        title = f"Held or new units: {comparison.prefix.removesuffix(': ')}"
        labels = {name: f"{comparison.prefix}{name}" for name in comparison.methods}
        found.append(Shown(title, labels, pairs, presets=frozenset({preset}), **own))
    return found


def _benchmark(name: str, loss: bool, data: str, presets: Mapping[str, Config]) -> Benchmark[Config]:
    metric = "loss" if loss else "accuracy"
    study = Study(name, presets, comparisons, build, metric, loss, at_best_validation, data=data)
    found = [each for preset, config in presets.items() for each in shown(config, preset)]
    return study.benchmark([each.section("equal steps", each.metric) for each in found], found)


BENCHMARK = _benchmark("regularizers-held", False, "MNIST, diamonds, CIFAR-10", {
    "smoke": Config(2, (("digits", 4),), "smoke", 2),
    "cpu": Config(3, (("digits", 300), ("table", 300), ("vit", 200))),
    "gpu": Config(10, (("digits", 5000), ("table", 5000), ("vit", 10_000)), "gpu"),
})  # fmt: skip
BENCHMARK_CHARACTERS = _benchmark("regularizers-held-characters", True, "Penn Treebank", {
    "smoke": Config(2, (("characters", 4),), "smoke", 2),
    "cpu": Config(3, (("characters", 2500),), points=10),
    "gpu": Config(10, (("characters", 10_000),), "gpu"),
})  # fmt: skip
