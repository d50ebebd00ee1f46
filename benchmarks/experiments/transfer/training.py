"""How a pretrained network is trained on, by each of the methods that are compared."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import mrreg
from benchmarks.experiments.transfer.data import Task, prepare
from benchmarks.experiments.transfer.models import SOURCES, Name, parts, pretrained

K, MOMENTUM = 5, 0.9
EVALUATED_AT_ONCE = 250


@dataclass(frozen=True)
class Method:
    """Which parts of a network train, and how often; parts are counted from the last.

    Args:
        trained: How many parts train; None is all of them.
        fast: How many parts train at every step, the others at every K-th; None is ordinary training.
        slow_lr: The learning rate of slow parts, as `MultirateSGD` takes it.
        gradual: One more part trains from each epoch on.
    """

    trained: int | None = None
    fast: int | None = None
    slow_lr: str = "coupled"
    gradual: bool = False


FULL, FC, BLOCK, GRADUAL = "full fine-tuning", "fc only", "last block + fc only", "gradual unfreezing"
MULTIRATE, MULTIRATE_BLOCK = f"multirate k = {K}, fast: fc", f"multirate k = {K}, fast: fc + last block"
MULTIRATE_HELD = f"{MULTIRATE}, slow lr / k"
METHODS = {
    FULL: Method(),
    MULTIRATE: Method(fast=1),
    MULTIRATE_BLOCK: Method(fast=2),
    MULTIRATE_HELD: Method(fast=1, slow_lr="per_gradient"),
    FC: Method(trained=1),
    BLOCK: Method(trained=2),
    GRADUAL: Method(gradual=True),
}


@dataclass(frozen=True)
class Setting:
    """One training run. The learning rate falls linearly to 0 over its steps where it decays."""

    network: Name
    pixels: int
    batch: int
    steps: int
    lr: float
    decay: bool = False
    weight_decay: float = 0.0


def begin(network: Name, classes: int, seed: int, folder: Path | None, device: torch.device) -> nn.Module:
    """The pretrained network in training mode (BatchNorm too), its last layer drawn from the seed."""
    torch.manual_seed(seed)
    net = pretrained(network, classes, folder)
    return net.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload, no-any-return]


def optimizer(net: nn.Module, method: Method, setting: Setting) -> Optimizer:
    """SGD with momentum, by MultirateSGD where some parts are slow; what does not train gets no gradient."""
    options: dict[str, Any] = {"lr": setting.lr, "momentum": MOMENTUM, "weight_decay": setting.weight_decay}
    if method.fast is not None:
        groups = mrreg.split(net, fast=parts(setting.network, method.fast))
        return mrreg.MultirateSGD(groups, k=K, slow_lr=method.slow_lr, **options)
    unfreeze(net, setting.network, 1 if method.gradual else method.trained)
    return SGD(net.parameters(), **options)


def unfreeze(net: nn.Module, network: Name, count: int | None) -> None:
    """Let the last `count` parts require gradients and no others; all of them if None."""
    net.requires_grad_(count is None)
    for module in parts(network, count or 0):
        net.get_submodule(module).requires_grad_(True)


def step(net: nn.Module, stepper: Optimizer, x: Tensor, y: Tensor) -> None:
    loss = F.cross_entropy(net(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    stepper.step()
    stepper.zero_grad()


def batches(task: Task, batch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole batches of the training images, in a new order every epoch, without end."""
    while True:
        order = torch.randperm(len(task.y), generator=generator)
        for index in order[: len(order) // batch * batch].view(-1, batch):
            chosen = index.to(task.y.device)
            yield task.x[chosen], task.y[chosen]


def train(
    net: nn.Module, method: Method, setting: Setting, task: Task, seed: int, evaluate: Collection[int]
) -> dict[int, float]:
    """Train for `setting.steps` steps; the accuracy in percent after each number of steps in `evaluate`.

    The order of the images follows from the seed alone, so that methods can be compared in pairs.
    """
    per_epoch = len(task.y) // setting.batch
    stepper = optimizer(net, method, setting)
    rates = [group["lr"] for group in stepper.param_groups]
    found = {}
    stream = batches(task, setting.batch, torch.Generator().manual_seed(seed))
    for done, (x, y) in enumerate(islice(stream, setting.steps)):
        if method.gradual and done % per_epoch == 0:
            unfreeze(net, setting.network, min(done // per_epoch + 1, len(SOURCES[setting.network].parts)))
        if setting.decay:
            for group, lr in zip(stepper.param_groups, rates, strict=True):
                group["lr"] = lr * (1 - done / setting.steps)
        step(net, stepper, prepare(x, setting.pixels), y)
        if done + 1 in evaluate:
            found[done + 1] = accuracy(net, task, setting.pixels)
    return found


def accuracy(net: nn.Module, task: Task, pixels: int) -> float:
    """Percent of the test images named rightly, in evaluation mode."""
    net.eval()
    with torch.no_grad():
        pairs = zip(task.test_x.split(EVALUATED_AT_ONCE), task.test_y.split(EVALUATED_AT_ONCE), strict=True)  # type: ignore[no-untyped-call]
        right = sum(int((net(prepare(x, pixels)).argmax(1) == y).sum()) for x, y in pairs)
    net.train()
    return 100 * right / len(task.test_y)
