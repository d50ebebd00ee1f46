"""Where the boost of a joint step is stable: an MLP with SGD and a decoder with AdamW, short trainings.

Goes beyond the paper. A training whose loss on test data ends above that of guessing, or is not finite, counts as
diverged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.core.comparison import Comparison, Job, Outcome
from benchmarks.core.records import Result
from benchmarks.core.sections import Section
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown
from benchmarks.core.training import Loop, mean_loss
from benchmarks.experiments.thin import chars, mlp, mnist


@dataclass(frozen=True)
class Method:
    """Period and boost; k = 1 leaves nothing out."""

    k: int = 1
    boost: float = 1.0


METHODS = {"none": Method()} | {
    f"k = {k}, boost {boost:g}": Method(k, boost) for k in (2, 5, 10) for boost in sorted({1.0, k / 2, float(k)})
}


@dataclass(frozen=True)
class Setting:
    """A network with its optimizer: SGD for the MLP, AdamW for the decoder."""

    network: Literal["MLP", "decoder"]
    lr: float
    momentum: float = 0.0

    @property
    def name(self) -> str:
        """Return the setting in words."""
        sgd = f"SGD with momentum {self.momentum:g}"
        return f"{self.network}, {sgd if self.network == 'MLP' else 'AdamW'}, lr {self.lr:g}"


SETTINGS = (
    *(Setting("MLP", lr) for lr in (0.1, 0.3)),
    *(Setting("MLP", lr, 0.9) for lr in (0.01, 0.03, 0.1)),
    *(Setting("decoder", lr) for lr in (1e-3, 3e-3, 1e-2)),
)


MLP, DECODER = mnist.Config(0, (), width=400), chars.Config(0, 0)


@dataclass(frozen=True)
class Config:
    """How long; `seeds` are those of each method."""

    seeds: int
    steps: int
    settings: tuple[Setting, ...] = SETTINGS
    images: mnist.Config = MLP
    text: chars.Config = DECODER


PRESETS = {
    "smoke": Config(2, 4, SETTINGS[::7], mnist.PRESETS["smoke"], chars.PRESETS["smoke"]),
    "cpu": Config(3, 300),
    "gpu": Config(5, 3000, images=mnist.PRESETS["gpu"], text=chars.PRESETS["gpu"]),
}
IMAGES = 1000  # training images drawn for each seed
P: Mapping[str, tuple[float, float]] = {"MLP": (0.2, 0.5), "decoder": (0.25, 0.17)}
"""Shares of pixels and hidden units, of hidden units and heads."""


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return one comparison for each setting."""
    return [
        Comparison(METHODS, config.seeds, (config.steps,), setting=setting, prefix=f"{setting.name}: ")
        for setting in config.settings
    ]


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of the study of the network, with the setting's learning rate and momentum."""
    setting: Setting = job.setting
    kind: Literal["none", "thin"] = "none" if method.k == 1 else "thin"
    one, other = P[setting.network]
    if setting.network == "MLP":
        thin = mlp.Method(kind, (one, other), method.k, method.boost)
        loop = mnist.build(config.images, thin, seed, replace(job, setting=IMAGES))
        loop.optimizer.param_groups[0] |= {"lr": setting.lr, "momentum": setting.momentum}
        loop.metric = mean_loss
        return loop
    loop = chars.build(config.text, chars.Method(kind, one, other, method.k, method.boost), seed, job)
    warm = loop.before

    def scaled(step: int) -> None:
        warm(step)
        loop.optimizer.param_groups[0]["lr"] *= setting.lr / chars.LR

    loop.before = scaled
    return loop


def result(config: Config, outcome: Outcome[Method]) -> Result:
    """Return the test loss at the end, nan where the training has diverged."""
    loss, classes = outcome.last("test"), {"MLP": 10, "decoder": 50}
    return {"loss": judged(loss, classes[outcome.setting.network]), "last loss": loss}


def judged(loss: float, classes: int) -> float:
    """Return the loss, nan where guessing among so many classes would be as good."""
    return loss if loss < math.log(classes) else math.nan


def section(setting: Setting) -> Section:
    """Return the table of one setting."""
    better = [(f"k = {k}, boost {k}", f"k = {k}, boost 1") for k in (2, 5, 10)]
    shown = Shown(
        f"Boost of the joint step: {setting.name}",
        {name: f"{setting.name}: {name}" for name in METHODS},
        better, "loss", "nats", 3, lower=True, words="a smaller loss than", ylabel="test loss",
        note="The networks of thin-mnist (1,000 images, 400 hidden units, p = 0.2/0.5) and thin-chars (p = 0.25/0.17), "
        "300 steps (`gpu`: the larger networks, 3,000 steps). Diverged runs end above the loss of guessing.",
    )  # fmt: skip
    return shown.section("after a short training", "loss")


STUDY = Study(
    "thin-boost", PRESETS, comparisons, build, "loss", lower=True, result=result, data="MNIST and Penn Treebank"
)
BENCHMARK = STUDY.benchmark([section(setting) for setting in SETTINGS])
