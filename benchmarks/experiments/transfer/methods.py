"""The ways in which a pretrained network is trained on: which parts, and how often."""

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

import mrreg
from benchmarks.experiments.transfer.models import SOURCES, Name, parts

K, MOMENTUM = 5, 0.9


@dataclass(frozen=True)
class Method:
    """The parts of a network that train, and how often; parts are counted from the last."""

    trained: int | None = None  # how many parts train; None is all of them
    fast: int | None = None  # how many parts train at every step, the others at every K-th; None is ordinary training
    slow_lr: str = "coupled"  # the learning rate of slow parts, as `MultirateSGD` takes it
    gradual: bool = False  # one more part trains from each epoch on
    lr: float | None = None  # the learning rate; None is that of the comparison


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
PAPER = (FULL, MULTIRATE, MULTIRATE_BLOCK, FC, BLOCK, GRADUAL)
FEW = (FULL, MULTIRATE, BLOCK)  # for which there is time on a CPU


def optimizer(net: nn.Module, network: Name, method: Method, lr: float, weight_decay: float) -> Optimizer:
    """Return SGD with momentum, or MultirateSGD where some parts are slow; what does not train gets no gradient."""
    options: dict[str, Any] = {"lr": lr, "momentum": MOMENTUM, "weight_decay": weight_decay}
    if method.fast is not None:
        groups = mrreg.split(net, fast=parts(network, method.fast))
        return mrreg.MultirateSGD(groups, k=K, slow_lr=method.slow_lr, **options)
    unfreeze(net, network, 1 if method.gradual else method.trained)
    return SGD(net.parameters(), **options)


def unfreeze(net: nn.Module, network: Name, count: int | None) -> None:
    """Let the last `count` parts require gradients and no others; all of them if None."""
    net.requires_grad_(count is None)
    for module in parts(network, count or 0):
        net.get_submodule(module).requires_grad_(True)


def stages(network: Name) -> dict[str, Method]:
    """Return what trains at each stage of gradual unfreezing, under the name of the timing."""
    count = len(SOURCES[network].parts)
    return {stage(n, count): Method(trained=n if n < count else None) for n in range(1, count + 1)}


def stage(trained: int, count: int) -> str:
    """Return the name under which the cost of training the last so many of all parts stands."""
    return {1: FC, 2: BLOCK, count: FULL}.get(trained, f"last {trained} parts only")
