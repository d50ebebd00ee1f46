"""A network of two hidden layers, and what is left out of it in training."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.experiments.regularizers import Method


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
    """Return two hidden layers; p is a pair, of the inputs and of the hidden units."""
    inputs, width, classes = sizes
    linear = [nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, classes)]
    first, hidden = method.of("dropout", "fresh", "entries") or (0.0, 0.0)
    layers: list[nn.Module] = []
    for layer, p in zip(linear, (first, hidden, hidden), strict=True):
        beside = method.beside if layers else 0.0
        match method.kind:
            case "dropout" | "fresh":
                parts = [(nn.Dropout if method.kind == "dropout" else DropUnits)(p), layer]
            case "entries":
                parts = [mrreg.MultirateMask(layer, p, method.k, boost=method.boost or method.k, rescale=True)]
            case _:
                parts = [nn.Dropout(beside), layer] if beside else [layer]
        layers += [nn.Sequential(*parts), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def shares(method: Method, _: Any) -> Mapping[str, float]:
    """Return what thin training leaves out."""
    return {"inputs": method.p[0], "hidden": method.p[1]}
