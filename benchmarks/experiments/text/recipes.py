"""Fine-tuning recipes: which part of the encoder trains at every step, which at every k-th, which not at all."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

import mrreg
from benchmarks.experiments.text.encoder import Classifier
from benchmarks.experiments.text.training import Trainee

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
    """One way to fine-tune.

    Args:
        trained: The part that trains at all, as in `Classifier.part`; the rest is frozen.
        fast: The part that trains at every step; the rest of `trained` is slow. None: all of it at every step.
        k: Period of the slow part.
        optimizer: SGD with momentum 0.9, or AdamW.
        lr: Step size per step.
        slow_lr: "coupled" (the paper's: k * lr for a gradient of the slow part) or "per_gradient" (lr).
        drift: Algorithm 1, else Algorithm 2.
        weight_decay: As in torch.
    """

    trained: str = "all"
    fast: str | None = None
    k: int = 5
    optimizer: Literal["SGD", "AdamW"] = "SGD"
    lr: float = 1e-3
    slow_lr: str = "coupled"
    drift: bool = True
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
        return Trainee(net, multirate(parameters, **options))
