"""Fine-tuning recipes: which part of the encoder trains at every step, which at every k-th, which not at all."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

import mrreg
from benchmarks.core.comparison import Job
from benchmarks.core.training import Batch, Loop
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.data import Texts, batches
from benchmarks.experiments.text.encoder import Classifier

CHUNK = 64  # texts evaluated at once


@dataclass
class Trainee:
    """A network with its optimizer, and whatever a method does after every step (a change of layers)."""

    model: nn.Module  # takes token ids and mask, returns logits; the classifier itself or something around it
    optimizer: Optimizer  # over the parameters that train
    scheduler: Any = None  # steps after every step
    resumable: bool = True  # all state is in the three


Prepare = Callable[[Classifier, float, int], Trainee]
"""Makes the trainee of a method from a freshly loaded classifier, an lr and a seed."""


def loop(trainee: Trainee, train: Texts, size: int, seed: int, splits: Mapping[str, Texts]) -> Loop:
    """Return the training of a trainee; the order of the texts follows from the seed alone."""
    return Loop(
        trainee.model,
        trainee.optimizer,
        batches(train, size, torch.Generator().manual_seed(seed)),
        {name: partial(by_length, texts) for name, texts in splits.items()},
        scheduler=trainee.scheduler,
        resumable=trainee.resumable,
    )


@dataclass(frozen=True, kw_only=True)
class SstConfig:
    """What the comparisons on SST-2 share: the encoder, the texts, and how many are held out to choose by."""

    seeds: int
    encoder: str
    held_out: int  # training texts
    cycle: int = 10  # steps of a turn of the timing: whole cycles for every k
    pool: int | None = None
    dev: int | None = None
    longest: int = 32
    batch: int = 16

    def training(self, prepare: Callable[[Classifier], Trainee], seed: int, job: Job, held_out: bool) -> Loop:
        """Return the training of a freshly loaded encoder, on all texts or on all but those held out."""
        whole = text_data.load("SST-2", self.encoder, self.longest, job.data_dir, self.pool).to(job.device)
        task = whole.held_out(self.held_out, seed) if held_out else whole
        torch.manual_seed(seed)
        net = text_model.encoder(self.encoder, task.classes).to(job.device)
        splits = {"validation": task.dev, "test": task.dev[: self.dev]}
        return loop(prepare(net), task.train, self.batch, seed, splits)


def by_length(texts: Texts) -> Iterator[Batch]:
    """Yield all texts in the order of their lengths, so that little is padding."""
    for index in torch.split(texts.length.argsort(), CHUNK):
        yield texts.batch(index)


MOMENTUM = 0.9
WORDS = {
    "all": "full fine-tuning",
    "layers": "embeddings frozen",
    "half": "lower half frozen",
    "last 2": "last two layers only",
    "last": "last layer only",
    "head": "classifier only",
}
FAST = {"head": "classifier", "last": "last layer", "last 2": "last two layers", "half": "half", "layers": "all layers"}


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

    def prepare(self, net: Classifier) -> Trainee:
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
            return Trainee(net, plain(parameters, **options))
        options |= {"k": self.k, "fast": net.part(self.fast), "slow_lr": self.slow_lr, "drift": self.drift}
        multirate = mrreg.MultirateSGD if self.optimizer == "SGD" else mrreg.MultirateAdamW
        return Trainee(net, multirate(parameters, model=net, **options))
