"""Training and evaluation for the MNIST benchmarks: one loop for a single network and for a stack of them."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mrreg
from benchmarks.data.mnist import CLASSES, Digits
from benchmarks.experiments.mnist.models import Method, network
from mrreg.masks.attachment import Attachment

ORDER_STREAM = 10_000  # added to a seed, so that the order of the images is not tied to the choice of them
CHUNK = 2500  # images evaluated at once


@dataclass(frozen=True)
class Setting:
    """What the methods of a comparison share.

    Args:
        epochs: Passes over the training images.
        batch: Images a step.
        width: Hidden units.
        lr: The step size, the paper's h.
        momentum: Of SGD.
        restart: Whether every epoch begins a new cycle, as in a loop that counts its batches anew each epoch.
        stacked: Whether all seeds are one batched computation: faster on a GPU and for narrow networks.
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
    """What one network did, after each epoch at which it was evaluated.

    `accuracy` is in percent with all weights; `as_left` too, but with the weights that the next step will use: at most
    moments of a cycle, the mask is on. `seconds` are those of training so far, evaluations left out.
    """

    epoch: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    as_left: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


Track = Callable[[Iterable[int]], Iterable[int]]


def train(
    method: Method,
    setting: Setting,
    digits: Digits,
    seeds: Sequence[int],
    *,
    evaluate: Collection[int] | None = None,
    track: Track = iter,
) -> list[Curves]:
    """Train a network for each seed.

    Args:
        method: How.
        setting: With what.
        digits: On what.
        seeds: One network each; its initial weights, order of images and masks follow from the seed.
        evaluate: After which epochs to evaluate, counted from 1; None is after every epoch.
        track: Wraps the epochs in a progress bar.
    """
    at = range(1, setting.epochs + 1) if evaluate is None else evaluate
    groups = [seeds] if setting.stacked else [[seed] for seed in seeds]
    return [curves for group in groups for curves in _train(method, setting, digits, group, at, track)]


def _train(
    method: Method, setting: Setting, digits: Digits, seeds: Sequence[int], at: Collection[int], track: Track
) -> list[Curves]:
    sizes = (digits.x.shape[1], setting.width, CLASSES)
    model = network(method, seeds, sizes, stacked=setting.stacked).to(digits.x.device)
    optimizer, handle = optimizer_of(model, method, setting, seeds[0])
    orders = [Order(digits.examples(seed), seed) for seed in seeds]
    curves = [Curves() for _ in seeds]
    torch.manual_seed(seeds[0])  # dropout draws from the global generator
    seconds = 0.0
    for epoch in track(range(1, setting.epochs + 1)):
        if handle and setting.restart and epoch > 1:
            handle.remove()
            handle = mrreg.attach(optimizer, model, seed=seeds[0] + ORDER_STREAM * epoch)
        index = torch.stack([order.draw() for order in orders]).to(digits.x.device)
        start = _now(digits.x.device)
        train_epoch(model, optimizer, digits.x, digits.y, index if setting.stacked else index[0], setting.batch)
        seconds += _now(digits.x.device) - start
        if epoch in at:
            for curve in curves:
                curve.epoch.append(epoch)
                curve.seconds.append(seconds)
            _evaluate(model, digits, curves, stacked=setting.stacked, as_left=handle is not None)
    return curves


def optimizer_of(
    model: nn.Module, method: Method, setting: Setting, seed: int
) -> tuple[torch.optim.SGD, Attachment | None]:
    """SGD over a network, driving its masks if it has any."""
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.lr, momentum=setting.momentum)
    return optimizer, mrreg.attach(optimizer, model, seed=seed) if method.kind == "masks" else None


class Order:
    """The training images of a seed, in a new order every epoch."""

    def __init__(self, examples: Tensor, seed: int) -> None:
        self.examples, self.generator = examples, torch.Generator().manual_seed(ORDER_STREAM + seed)

    def draw(self) -> Tensor:
        """The order of the next epoch."""
        return self.examples[torch.randperm(len(self.examples), generator=self.generator)]


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, index: Tensor, batch: int
) -> None:
    """One pass over the images `index`, (n) or (seeds, n); the loss is the sum over seeds of each seed's mean."""
    model.train()
    seeds = len(index) if index.dim() == 2 else 1
    for part in torch.split(index, batch, dim=-1):
        loss = F.cross_entropy(model(x[part]).flatten(0, -2), y[part].flatten()) * seeds
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _evaluate(model: nn.Module, digits: Digits, curves: list[Curves], *, stacked: bool, as_left: bool) -> None:
    """Add the accuracies of this moment to the curves of all seeds."""

    def percent() -> list[float]:
        hits = torch.zeros(len(curves), device=digits.x.device)
        for x, y in zip(torch.split(digits.test_x, CHUNK), torch.split(digits.test_y, CHUNK), strict=True):
            hits += (model(x.expand(len(curves), *x.shape) if stacked else x).argmax(-1) == y).sum(-1)
        shares: list[float] = (100 * hits / len(digits.test_y)).tolist()
        return shares

    with torch.no_grad():
        model.eval()
        everything = percent()
        model.train()  # a mask is on in training mode only
        left = percent() if as_left else everything
    for curve, full, part in zip(curves, everything, left, strict=True):
        curve.accuracy.append(full)
        curve.as_left.append(part)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
