"""Fine-tuning recipes: which part of the encoder trains at every step, which at every k-th, which not at all."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

import mrreg
from benchmarks.core.training import Batch, Loop
from benchmarks.experiments.text.data import Texts, batches
from benchmarks.experiments.text.encoder import Classifier

CHUNK = 64  # texts evaluated at once
MOMENTUM = 0.9
WORDS = {
    "all": "full fine-tuning",
    "layers": "embeddings frozen",
    "half": "lower half frozen",
    "last": "last layer only",
    "head": "classifier only",
}
FAST = {"head": "classifier", "last": "last layer", "half": "half"}


@dataclass(frozen=True)
class Recipe:
    """One way to fine-tune."""

    trained: str = "all"  # the part that trains at all, as in `Classifier.part`; the rest is frozen
    fast: str | None = None  # the part that trains at every step, the rest of `trained` being slow; None: all of it
    k: int = 5  # period of the slow part
    optimizer: Literal["SGD", "AdamW"] = "SGD"  # SGD with momentum 0.9
    lr: float = 1e-3  # per step
    slow_lr: str = "coupled"  # the paper's: k * lr for a gradient of the slow part; or "per_gradient": lr
    drift: bool = True  # Algorithm 1, else Algorithm 2
    weight_decay: float = 0.0

    @property
    def name(self) -> str:
        """Return the recipe in words, without the optimizer, its lr and weight decay."""
        if self.fast is None:
            return WORDS[self.trained]
        words = [f"{FAST[self.fast]} fast, k = {self.k}"]
        words += ["slow lr / k"] if self.slow_lr == "per_gradient" else []
        words += ["no drift"] if not self.drift else []
        words += [WORDS[self.trained]] if self.trained != "all" else []
        return ", ".join(words)

    def prepare(self, net: Classifier) -> Optimizer:
        """Return the optimizer over a freshly loaded network, whose frozen part no longer wants gradients."""
        net.requires_grad_(False)
        parameters = net.parameters_of(self.trained)
        for parameter in parameters:
            parameter.requires_grad_(True)
        options: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        if self.optimizer == "SGD":
            options["momentum"] = MOMENTUM
        if self.fast is None:
            plain = torch.optim.SGD if self.optimizer == "SGD" else torch.optim.AdamW
            return plain(parameters, **options)
        options |= {"k": self.k, "fast": net.part(self.fast), "slow_lr": self.slow_lr, "drift": self.drift}
        multirate = mrreg.MultirateSGD if self.optimizer == "SGD" else mrreg.MultirateAdamW
        return multirate(parameters, model=net, **options)


@dataclass(frozen=True)
class Setting:
    """A task and what is trained on it."""

    name: str  # as in GLUE
    lr: dict[str, float]  # of each optimizer whose methods are run
    epochs: int = 1
    texts: int | None = None  # how many training texts, drawn by the seed; None: all
    dev: int | None = None  # how many dev texts; None: all
    batch: int = 16
    longest: int = 128  # tokens at which texts are cut
    k: int | None = None  # where not the methods' own, as `fast`
    fast: str | None = None
    weight_decay: float = 0.0


def loop(net: nn.Module, optimizer: Optimizer, train: Texts, size: int, seed: int, splits: Mapping[str, Texts]) -> Loop:
    """Return the training of a network; the order of the texts follows from the seed alone."""
    ordered = batches(train, size, torch.Generator().manual_seed(seed))
    return Loop(net, optimizer, ordered, {name: partial(by_length, texts) for name, texts in splits.items()})


def by_length(texts: Texts) -> Iterator[Batch]:
    """Yield all texts in the order of their lengths, so that little is padding."""
    for index in torch.split(texts.length.argsort(), CHUNK):
        yield texts.batch(index)
