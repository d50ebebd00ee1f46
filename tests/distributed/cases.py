"""What the checks on two ranks share: models, optimizers, and the comparison with one process."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import mrreg

K = 3
STEPS = K + 2
Make = Callable[[nn.Module], Optimizer]
Check = Callable[[int], None]
CHECKS: dict[str, Check] = {}
DDP: Any = DistributedDataParallel  # its options come from tables


def check(function: Check) -> Check:
    """Have it run by both ranks."""
    CHECKS[function.__name__] = function
    return function


# models whose layers have odd sizes, so that shards are uneven, one of them empty


def plain_net() -> nn.Sequential:
    """Trunk 0 and 2, head 4."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()


def masked_net(structure: Any = "weight", **options: Any) -> nn.Sequential:
    """The same with masks on the last two layers."""
    net = plain_net()
    for i in (2, 4):
        net[i] = mrreg.MultirateMask(net[i], p=0.4, k=K, structure=structure, **options)
    return net


def batch(t: int) -> Tensor:
    return torch.randn(64, 6, generator=torch.Generator().manual_seed(t), dtype=torch.float64)


def backward(net: nn.Module, x: Tensor) -> None:
    out = net(x)
    loss = (out.square() * torch.linspace(0.5, 1.5, out.shape[-1], dtype=out.dtype)).mean()
    torch.autograd.backward(loss)


def full(value: Tensor) -> Tensor:
    """A whole tensor from its shards."""
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.detach().clone()


def agree(net: nn.Module, alone: nn.Module, rank: int) -> None:
    """The same parameters, flags and gradients as one process has."""
    for (name, p), q in zip(net.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(full(p), q.detach(), rtol=1e-12, atol=1e-13, msg=name)
        assert p.requires_grad == q.requires_grad, name


def equal_to_one_process(
    net: nn.Module, alone: nn.Module, make: Make, rank: int, masks: bool = False, evaluates: bool = True
) -> None:
    """Train on halves of the batches beside a process with all of them."""
    optimizer, other = make(net), make(alone)
    handles = [mrreg.attach(o, n) for o, n in ((optimizer, net), (other, alone)) if masks]
    for t in range(STEPS):
        x = batch(t)
        backward(net, x.chunk(2)[rank])
        backward(alone, x)
        for p, q in zip(net.parameters(), alone.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None and q.grad is not None:
                assert torch.equal(full(p.grad) == 0, q.grad == 0)  # held entries have none
        optimizer.step()
        other.step()
        agree(net, alone, rank)
        optimizer.zero_grad()
        other.zero_grad()
        with torch.no_grad():  # evaluation in between, on all weights
            if not evaluates:
                continue
            torch.testing.assert_close(net.eval()(x), alone.eval()(x), rtol=1e-10, atol=1e-12)
        net.train()
        alone.train()
    for handle in handles:
        handle.remove()


def layers(net: nn.Module) -> nn.Sequential:
    """What a wrapper holds."""
    inner = net.module if isinstance(net, DistributedDataParallel) else net
    assert isinstance(inner, nn.Sequential)
    return inner


def head(net: nn.Module) -> nn.Module:
    return layers(net)[-1]


def sgd(net: nn.Module) -> Optimizer:
    return mrreg.MultirateSGD(mrreg.split(net, fast=head(net)), lr=0.1, k=K, momentum=0.9, weight_decay=0.01, model=net)


def algorithm2(net: nn.Module) -> Optimizer:
    return mrreg.MultirateSGD(mrreg.split(net, fast=head(net)), lr=0.1, k=K, momentum=0.9, drift=False, model=net)


def adamw(net: nn.Module) -> Optimizer:
    return mrreg.MultirateAdamW(mrreg.split(net, fast=head(net)), lr=0.01, k=K, foreach=True, model=net)


def mean(net: nn.Module) -> Optimizer:
    return mrreg.MultirateAdamW(net.parameters(), lr=0.01, k=K, fast=head(net), gradient="mean")


def three(net: nn.Module) -> Optimizer:
    return mrreg.Multirate(
        [
            (torch.optim.AdamW(head(net).parameters(), lr=0.01), 1),
            (torch.optim.SGD(layers(net)[2].parameters(), lr=0.1), 2),
            (torch.optim.RMSprop(layers(net)[0].parameters(), lr=0.01, momentum=0.5), 4),
        ],
        model=net,
    )


def langevin(net: nn.Module) -> Optimizer:
    fast, slow = mrreg.split(net, fast=head(net))
    options: dict[str, Any] = {"lr": 0.01, "momentum": 0.5, "temperature": 0.1}
    parts = [(mrreg.LangevinSGD([fast], **options), 1), (mrreg.LangevinSGD([slow], **options), K)]
    return mrreg.Multirate(parts, model=net)


def whole(net: nn.Module) -> Optimizer:
    """As `sgd`, from the model alone."""
    return mrreg.MultirateSGD(net, lr=0.1, k=K, fast=head(net), momentum=0.9, weight_decay=0.01)


ENGINES: tuple[Make, ...] = (sgd, algorithm2, adamw, mean, three, langevin)
PLAIN: tuple[Make, ...] = (
    lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True),
)


def masked_and_multirate(net: nn.Module) -> Optimizer:
    """The layers with masks are fast."""
    return mrreg.MultirateSGD(mrreg.split(net, slow=layers(net)[0]), lr=0.1, k=2, momentum=0.9, model=net)


def sharded(net: nn.Sequential, single: bool = False, mesh: tuple[int, ...] = (2,)) -> nn.Sequential:
    """With fully_shard on layers that have parameters and on the whole, or on the whole alone."""
    where = init_device_mesh("cpu", mesh, mesh_dim_names=("replicas", "shards")[-len(mesh) :])
    for layer in () if single else net:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=where)
    fully_shard(net, mesh=where)
    return net
