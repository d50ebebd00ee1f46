"""BatchNorm under thin training: running statistics as they come, of joint steps alone, or taken anew at the end.

Goes beyond the paper. The ResNet of thin-convolutions, at equal steps. Running statistics do not act on training, so
those taken anew are evaluated with the weights of the same trainings.
"""

from copy import deepcopy
from dataclasses import dataclass, field

from torch import nn
from torch.optim.swa_utils import update_bn

import mrreg
from benchmarks.core import stats
from benchmarks.core.comparison import Comparison, Job, Outcome
from benchmarks.core.records import Result
from benchmarks.core.sections import Bars, Claim, Row, Section, Values, gain, metric
from benchmarks.core.study import Study
from benchmarks.core.training import Loop
from benchmarks.experiments.thin import convolutions


@dataclass(frozen=True)
class Method:
    """Thin training or none, and whether statistics move at joint steps only."""

    trained: convolutions.Method
    joint: bool = False


THIN = {f"boost {boost}": convolutions.Method("thin", 0.25, boost=boost) for boost in (1, 5)}
METHODS = {"none": Method(convolutions.Method())} | {
    f"{name}{words}": Method(method, joint)
    for name, method in THIN.items()
    for words, joint in (("", False), (", joint steps", True))
}
ANEW = "accuracy, statistics taken anew"


@dataclass(frozen=True)
class Config:
    """How many seeds, and the network's own configuration."""

    seeds: int
    network: convolutions.Config = field(default_factory=lambda: convolutions.PRESETS["cpu"])


PRESETS = {
    "smoke": Config(2, convolutions.PRESETS["smoke"]),
    "cpu": Config(5),
    "gpu": Config(10, convolutions.PRESETS["gpu"]),
}


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return the comparison at equal steps."""
    return [
        Comparison(METHODS, config.seeds, (config.network.steps,), setting="ResNet"),
    ]


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of the ResNet."""
    loop = convolutions.build(config.network, method.trained, seed, job)
    layers = [module for module in loop.model.modules() if isinstance(module, nn.BatchNorm2d)]
    scheduled = loop.before

    def before(step: int) -> None:
        scheduled(step)
        for layer in layers:
            layer.momentum = 0.1 if (step + 1) % method.trained.k == 0 else 0.0

    if method.joint:
        loop.before = before
    return loop


def result(config: Config, outcome: Outcome[Method]) -> Result:
    """Return the accuracy with either statistics."""
    assert isinstance(outcome.trainer, Loop)
    return {"accuracy": outcome.last("test"), ANEW: normalized(outcome.trainer)}


def normalized(loop: Loop) -> float:
    """Return what is found on test images with statistics taken anew; the model stays as it is."""
    model = mrreg.unwrap(deepcopy(loop.model))
    update_bn(loop.splits["drawn"](), model)
    return float(loop.metric(model, loop.splits["test"]()))


def anew(method: str) -> Values:
    """Return the accuracy with statistics taken anew minus that with those that came, one a seed."""
    return lambda record: stats.paired(record.numbers(method, ANEW), record.numbers(method, "accuracy"))


SECTION = Section(
    "",
    "BatchNorm under thin training",
    "%",
    rows=tuple(
        Row(f"{name}{words}", metric(name, number))
        for name in METHODS
        for words, number in (("", "accuracy"), (", taken anew", ANEW))
    ),
    claims=tuple(
        claim
        for boost in THIN
        for claim in (
            Claim(f"{boost}: statistics of joint steps are better", gain(f"{boost}, joint steps", boost, "accuracy")),
            Claim(f"{boost}: statistics taken anew are better", anew(boost)),
        )
    ),
    plots=(Bars("test accuracy [%]"),),
    note="The ResNet of thin-convolutions with p = 0.25, k = 5, at equal steps. Statistics of joint steps move at "
    "every fifth step only; those taken anew are means over the training images with the whole network.",
)
STUDY = Study("thin-batchnorm", PRESETS, comparisons, build, result=result, data="CIFAR-10")
BENCHMARK = STUDY.benchmark([SECTION])
