"""The methods of the MNIST benchmarks, their network (one hidden layer) and its training, of one seed or of many."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.stacked import Generators, StackedLinear
from benchmarks.core.training import Batches, Loop, cross_entropy, percent_right
from benchmarks.data.mnist import CLASSES, Digits

ORDER_STREAM = 10_000  # added to a seed, so that the order of the images is not tied to the choice of them
CHUNK = 2500  # images evaluated at once
AS_LEFT = "as left"  # the split that evaluates the weights that the next step will use: mostly, the mask is on

Kind = Literal["SGD", "dropout", "DropConnect", "masks", "every step"]
Structure = Literal["weight", "input", "output", "hidden"]


@dataclass(frozen=True)
class Method:
    """One way to train the network: what is left out, if anything, and when."""

    kind: Kind = "SGD"  # dropout leaves out units, the others weights
    p: tuple[float, float] = (0.0, 0.0)  # the probability of being left out, in the input and in the hidden layer
    k: int = 5  # steps of a mask's cycle
    boost: float | None = None  # how many times larger a slow weight's step is; None is k
    structure: Structure = "weight"  # what a mask leaves out together
    rescale: bool = False  # divide kept weights by 1 - p while a mask is on


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
    """Return the network of a method, whose weights depend on nothing but the seeds and the sizes.

    With `stacked`, parameters and inputs have a first dimension over the seeds, whose networks are one batched product.
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
    """Mask the layers; as whole outputs only hidden units are left out, since the last ones are the classes."""

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


@dataclass(frozen=True)
class Setting:
    """Settings that the methods of a comparison share."""

    batch: int = 64
    width: int = 800  # hidden units
    lr: float = 0.1  # the paper's h
    momentum: float = 0.0
    restart: bool = False  # begin a new cycle with every epoch, as a loop does that counts its batches anew
    stacked: bool = False  # compute all seeds in one batch: faster on a GPU and for narrow networks


class Training(Loop):
    """The ordinary loop; one network of a seed, or all of them stacked."""

    def evaluate(self, split: str) -> Any:
        """Return accuracy on a split, one a seed where they are stacked."""
        left = split == AS_LEFT
        return percent_right(self.model, self.splits["test" if left else split](), training=left).tolist()


def begin(method: Method, setting: Setting, digits: Digits, seeds: Sequence[int]) -> Training:
    """Return the training of a freshly drawn network, or of one a seed where they are stacked.

    Initial weights, the order of the images and masks follow from the seed.
    """
    count = len(seeds) if setting.stacked else 0
    sizes = (digits.x.shape[1], setting.width, CLASSES)
    model = network(method, seeds, sizes, stacked=setting.stacked).to(digits.x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.lr, momentum=setting.momentum)
    torch.manual_seed(seeds[0])  # dropout draws from the global generator
    loop = Training(model, optimizer, batches_of(digits, seeds, setting.batch, stacked=setting.stacked))
    loop.splits = {"test": partial(digits.held_out, CHUNK, lambda x: x.expand(count, *x.shape) if count else x)}
    loop.loss = lambda logits, y: cross_entropy(logits, y) * (count or 1)  # the sum over seeds of each seed's mean
    if method.kind == "masks":
        handle = mrreg.attach(optimizer, model, seed=seeds[0])
        epoch = -(-len(digits.examples(seeds[0])) // setting.batch)

        def restart(step: int) -> None:
            nonlocal handle
            if step and step % epoch == 0:
                handle.remove()
                handle = mrreg.attach(optimizer, model, seed=seeds[0] + ORDER_STREAM * (step // epoch + 1))

        loop.before = restart if setting.restart else loop.before
    return loop


def batches_of(digits: Digits, seeds: Sequence[int], size: int, *, stacked: bool) -> Batches:
    """Return batches of the training images of each seed, (size, ...) or (seeds, size, ...), in orders of its own."""
    examples = torch.stack([digits.examples(seed) for seed in seeds])

    def order(generators: Generators) -> Sequence[Tensor]:
        index = examples.take_along_dim(generators.permutations(examples.shape[1]), 1).to(digits.x.device)
        return torch.split(index if stacked else index[0], size, dim=-1)

    generators = Generators([ORDER_STREAM + seed for seed in seeds])
    return Batches(order, lambda index: (digits.x[index], digits.y[index]), generators)
