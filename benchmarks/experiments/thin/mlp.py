"""A network of two hidden layers, and what is left out of it in training."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

import mrreg


@dataclass(frozen=True)
class Method:
    """One way to regularize the network.

    Args:
        kind: What is left out: units for each example (dropout), for the batch and k - 1 steps (thin), for the batch
            and one step, with no joint step (fresh), single weights (entries).
        p: Shares of the pixels and of the hidden units.
        k: Steps per cycle.
        boost: Factor of the joint step; None is k.
        weight_decay: Of SGD.
        beside: Dropout's p of the hidden units that thin training keeps.
    """

    kind: Literal["none", "dropout", "thin", "fresh", "entries"] = "none"
    p: tuple[float, float] = (0.0, 0.0)
    k: int = 5
    boost: float | None = None
    weight_decay: float = 0.0
    beside: float = 0.0


class DropUnits(nn.Module):
    """Leave out a share p of the units, exactly, the same ones for the whole batch, drawn anew at every step."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return the kept units, n/m times what they were; in evaluation all as they are."""
        units = x.shape[-1]
        kept = units - round(self.p * units)
        if not self.training or kept == units:
            return x
        factors = torch.zeros(units, device=x.device)
        factors[torch.randperm(units, device=x.device)[:kept]] = units / kept
        return x * factors


def network(method: Method, sizes: tuple[int, int, int]) -> nn.Sequential:
    """Return two hidden layers; the weights of all methods are the same for a seed."""
    pixels, width, classes = sizes
    linear = [nn.Linear(pixels, width), nn.Linear(width, width), nn.Linear(width, classes)]
    p = (method.p[0], method.p[1], method.p[1])
    match method.kind:
        case "dropout" | "fresh":
            drop = nn.Dropout if method.kind == "dropout" else DropUnits
            layers = [nn.Sequential(drop(each), layer) for each, layer in zip(p, linear, strict=True)]
        case "entries":
            masked = (mrreg.MultirateMask(m, q, method.k, rescale=True) for q, m in zip(p, linear, strict=True))
            layers = [nn.Sequential(each) for each in masked]
        case _:
            beside = [0.0, method.beside, method.beside]
            layers = [nn.Sequential(*([nn.Dropout(q)] if q else []), m) for q, m in zip(beside, linear, strict=True)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    if method.kind != "thin":
        return model
    found = plan(method.p, sizes, method.beside)
    return mrreg.thin(model, k=method.k, boost=method.boost, plan=found)[0]


@cache
def plan(p: tuple[float, float], sizes: tuple[int, int, int], beside: float = 0.0) -> mrreg.ThinReport:
    """Return the groups of units, found once for all trainings."""
    model = network(Method(beside=beside), sizes)
    return mrreg.thin(model, p={"inputs": p[0], "hidden": p[1]}, example_inputs=torch.rand(2, sizes[0]))[1]
