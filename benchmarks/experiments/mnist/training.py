"""Training for the MNIST benchmarks: of a single network, and of one network a seed in one batched computation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

import mrreg
from benchmarks.core.timing import clock
from benchmarks.core.training import Batch, Batches, Loop, accuracy, percent_right
from benchmarks.data.mnist import CLASSES, Digits
from benchmarks.experiments.mnist.models import Method, network

ORDER_STREAM = 10_000  # added to a seed, so that the order of the images is not tied to the choice of them
CHUNK = 2500  # images evaluated at once


@dataclass(frozen=True)
class Setting:
    """Settings that the methods of a comparison share.

    Args:
        epochs: Passes over the training images.
        batch: Images a step.
        width: Hidden units.
        lr: The step size, the paper's h.
        momentum: Of SGD.
        restart: Begin a new cycle with every epoch, as in a loop that counts its batches anew each epoch.
        stacked: Compute all seeds in one batch: faster on a GPU and for narrow networks.
    """

    epochs: int
    batch: int = 64
    width: int = 800
    lr: float = 0.1
    momentum: float = 0.0
    restart: bool = False
    stacked: bool = False


@dataclass
class Curves:
    """Numbers of one network, epoch by epoch.

    `accuracy` is in percent with all weights; `as_left` too, but with the weights that the next step will use: at most
    moments of a cycle, the mask is on. `seconds` are those of training so far, evaluations left out.
    """

    accuracy: list[float] = field(default_factory=list)
    as_left: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


Track = Callable[[Iterable[int]], Iterable[int]]


def train(
    method: Method, setting: Setting, digits: Digits, seeds: Sequence[int], *, track: Track = iter
) -> list[Curves]:
    """Train a network for each seed and evaluate it after every epoch.

    Args:
        method: How.
        setting: With what.
        digits: On what.
        seeds: One network each; its initial weights, order of images and masks follow from the seed.
        track: Wraps the epochs in a progress bar.
    """
    groups = [seeds] if setting.stacked else [[seed] for seed in seeds]
    return [curves for group in groups for curves in _train(method, setting, digits, group, track)]


def _train(method: Method, setting: Setting, digits: Digits, seeds: Sequence[int], track: Track) -> list[Curves]:
    loop = begin(method, setting, digits, seeds)
    masked = method.kind == "masks"
    handle = mrreg.attach(loop.optimizer, loop.model, seed=seeds[0]) if masked else None
    steps = -(-len(digits.examples(seeds[0])) // setting.batch)
    curves = [Curves() for _ in seeds]
    now, seconds = clock(digits.x.device), 0.0
    for epoch in track(range(1, setting.epochs + 1)):
        if handle and setting.restart and epoch > 1:
            handle.remove()
            handle = mrreg.attach(loop.optimizer, loop.model, seed=seeds[0] + ORDER_STREAM * epoch)
        start = now()
        for _ in range(steps):
            loop.step()
        seconds += now() - start
        everything, left = (
            percent_right(loop.model, loop.splits["test"](), training=training).view(-1).tolist()
            for training in (False, masked)
        )
        for curve, full, part in zip(curves, everything, left, strict=True):
            curve.accuracy.append(full)
            curve.as_left.append(part)
            curve.seconds.append(seconds)
    return curves


def begin(method: Method, setting: Setting, digits: Digits, seeds: Sequence[int]) -> Loop:
    """Return the training of a freshly drawn network, or of one a seed where they are stacked; masks not attached."""
    sizes = (digits.x.shape[1], setting.width, CLASSES)
    model = network(method, seeds, sizes, stacked=setting.stacked).to(digits.x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.lr, momentum=setting.momentum)

    def loss(logits: Tensor, y: Tensor) -> Tensor:  # the sum over seeds of each seed's mean
        return F.cross_entropy(logits.flatten(0, -2), y.flatten()) * (len(seeds) if setting.stacked else 1)

    torch.manual_seed(seeds[0])  # dropout draws from the global generator
    splits = {"test": partial(held_out, digits, len(seeds) if setting.stacked else 0)}
    batches = batches_of(digits, seeds, setting.batch, stacked=setting.stacked)
    return Loop(model, optimizer, batches, splits, accuracy, loss, resumable=not setting.stacked)


def batches_of(digits: Digits, seeds: Sequence[int], size: int, *, stacked: bool) -> Batches:
    """Return batches of the training images of each seed, (size, ...) or (seeds, size, ...), in orders of its own."""
    generators = [torch.Generator().manual_seed(ORDER_STREAM + seed) for seed in seeds]
    examples = [digits.examples(seed) for seed in seeds]

    def order(first: torch.Generator) -> Sequence[Tensor]:
        drawn = [each[torch.randperm(len(each), generator=g)] for each, g in zip(examples, generators, strict=True)]
        index = torch.stack(drawn).to(digits.x.device)
        return torch.split(index if stacked else index[0], size, dim=-1)

    return Batches(order, lambda index: (digits.x[index], digits.y[index]), generators[0])


def held_out(digits: Digits, stacked: int = 0) -> Iterator[Batch]:
    """Yield the test images in parts, (n, ...), or once for each of the stacked networks, (stacked, n, ...)."""
    for x, y in zip(torch.split(digits.test_x, CHUNK), torch.split(digits.test_y, CHUNK), strict=True):
        yield (x.expand(stacked, *x.shape) if stacked else x), y
