"""The methods of the MNIST benchmark and their network: one hidden layer, for one seed or for many at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.stacked import StackedLinear

Kind = Literal["SGD", "dropout", "DropConnect", "masks", "every step"]
Structure = Literal["weight", "input", "output", "hidden"]


@dataclass(frozen=True)
class Method:
    """One way to train the network.

    Args:
        kind: What is left out, if anything: units (dropout), weights (the others).
        p: The probability of being left out, in the input layer and in the hidden layer.
        k: Steps of a mask's cycle.
        boost: How many times larger a slow weight's step is; None is k.
        structure: What a mask leaves out together.
        rescale: Divide kept weights by 1 - p while a mask is on.
    """

    kind: Kind = "SGD"
    p: tuple[float, float] = (0.0, 0.0)
    k: int = 5
    boost: float | None = None
    structure: Structure = "weight"
    rescale: bool = False


class DropWeights(nn.Module):
    """A layer of which a fresh random part of the weights is zero in every training step, and none in evaluation.

    With `rescale` the kept weights are divided by 1 - p: DropConnect, with one mask a batch. Without, it is what
    remains of the paper's masks when the multirate part is taken away: no held weights, no joint step.
    """

    def __init__(self, module: nn.Module, p: float, *, rescale: bool) -> None:
        super().__init__()
        self.module, self.p, self.rescale = module, p, rescale

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer with some of its weights."""
        if not self.training:
            return self.module(x)  # type: ignore[no-any-return]
        weight = self.module.get_parameter("weight")
        kept = torch.empty_like(weight).bernoulli_(1 - self.p)
        if self.rescale:
            kept /= 1 - self.p
        out: Tensor = torch.func.functional_call(self.module, {"weight": weight * kept}, (x,))
        return out


def network(method: Method, seeds: Sequence[int], sizes: tuple[int, int, int], *, stacked: bool) -> nn.Sequential:
    """The network of a method; its weights depend on nothing but the seeds and the sizes.

    Args:
        method: What is wrapped around its layers.
        seeds: One seed, or all whose networks are computed in one batched product.
        sizes: Of the input, the hidden layer and the output.
        stacked: Parameters and inputs have a first dimension over the seeds.
    """
    pairs = [_layers(seed, sizes) for seed in seeds]
    first, second = (StackedLinear(layers) for layers in zip(*pairs, strict=True)) if stacked else pairs[0]
    p_in, p_hidden = method.p
    match method.kind:
        case "SGD":
            return nn.Sequential(first, nn.ReLU(), second)
        case "dropout":
            return nn.Sequential(nn.Dropout(p_in), first, nn.ReLU(), nn.Dropout(p_hidden), second)
        case "masks":
            return _masked(method, first, second)
    rescale = method.kind == "DropConnect"
    return nn.Sequential(
        DropWeights(first, p_in, rescale=rescale), nn.ReLU(), DropWeights(second, p_hidden, rescale=rescale)
    )


def _layers(seed: int, sizes: tuple[int, int, int]) -> tuple[nn.Linear, nn.Linear]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(sizes[0], sizes[1]), nn.Linear(sizes[1], sizes[2])


def _masked(method: Method, first: nn.Module, second: nn.Module) -> nn.Sequential:
    """The layers under masks; as whole outputs only hidden units are left out, since the last ones are the classes."""

    def mask(module: nn.Module, p: float) -> nn.Module:
        return mrreg.MultirateMask(
            module, p=p, k=method.k, boost=method.boost, structure=method.structure, rescale=method.rescale
        )

    p_in, p_hidden = method.p
    match method.structure:
        case "hidden":
            return nn.Sequential(mask(nn.Sequential(first, nn.ReLU(), second), p_hidden))
        case "output":
            return nn.Sequential(mask(first, p_hidden), nn.ReLU(), second)
    return nn.Sequential(mask(first, p_in), nn.ReLU(), mask(second, p_hidden))
