"""What the tests of masks share: models, one training step, and the check that held entries do not change by a bit."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import mrreg
from mrreg.masks.entries import as_bits
from mrreg.masks.mask import Mask
from mrreg.masks.tensors import ZeroedTensor


def mlp(p: float = 0.5, k: int = 3, dtype: torch.dtype = torch.float32, **options: Any) -> nn.Sequential:
    """Two masked layers."""
    torch.manual_seed(1)
    first, second = nn.Linear(6, 10, dtype=dtype), nn.Linear(10, 3, dtype=dtype)
    return nn.Sequential(
        mrreg.MultirateMask(first, p, k, **options), nn.Tanh(), mrreg.MultirateMask(second, p, k, **options)
    )


def plain_mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """The same without masks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 10, dtype=dtype), nn.Tanh(), nn.Linear(10, 3, dtype=dtype))


def batch(t: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The input of step t, whatever the global random state."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(t)).to(dtype)


def loss_of(out: Any) -> Tensor:
    """A loss that a final normalization does not make constant."""
    out = out[0] if isinstance(out, tuple) else out
    loss: Tensor = (out.square() * torch.linspace(0.5, 1.5, out.shape[-1], dtype=out.dtype)).mean()
    return loss


def train_step(model: nn.Module, optimizer: Optimizer, x: Any) -> Tensor:
    """Zero gradients, forward, backward, step; the loss."""
    optimizer.zero_grad()
    loss = loss_of(model(x))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def train(model: nn.Module, optimizer: Optimizer, steps: range | int) -> list[float]:
    """Train on the batches of some steps; the losses."""
    dtype = next(model.parameters()).dtype
    return [
        train_step(model, optimizer, batch(t, dtype)).item()
        for t in (range(steps) if isinstance(steps, int) else steps)
    ]


def attached(module: nn.Module, **options: Any) -> tuple[nn.Module, Optimizer]:
    """The module, masked, with SGD and momentum that drives it."""
    mask: Any = mrreg.MultirateMask(module, **{"k": 3, **options})
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.01, momentum=0.9)
    mrreg.attach(optimizer, mask)
    vars(of(mask))["optimizer"] = optimizer  # lives as long
    return mask, optimizer


def of(module: Any) -> Mask:
    """The mask of a module."""
    return mrreg.MultirateMask.of(module)


def bits(module: nn.Module) -> dict[str, Tensor]:
    """Minus one where the entries of each masked parameter are present, and zero where absent."""
    mask, found = of(module), {}
    for name, p in mask.masked_parameters() if mask.drawn else ():
        tensor = mask.tensors[name]
        assert isinstance(tensor, ZeroedTensor)
        found[name] = tensor.entries(p).bits
    return found


def masks(model: nn.Module) -> list[mrreg.MultirateMask]:
    return [m for m in model.modules() if isinstance(m, mrreg.MultirateMask)]


def slow_entries(mask: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Each masked parameter with the truth values of its slow entries."""
    for target in of(mask).targets:
        p = mask.get_parameter(target.name)
        yield p, (bits(mask)[target.name] == 0).expand_as(p)


def held_bits(model: nn.Module, optimizer: Optimizer) -> list[tuple[Callable[[], Tensor], Tensor]]:
    """How to read the bits of slow entries and of their state now, and what they are now."""
    found = []
    for mask in masks(model):
        for p, slow in slow_entries(mask):
            names = [n for n, s in optimizer.state.get(p, {}).items() if s.shape == p.shape and n != "step"]
            reads: list[Callable[[], Tensor]] = [lambda p=p, s=slow: as_bits(p.detach())[s].clone()]  # type: ignore[misc]
            for name in names:
                reads.append(lambda p=p, n=name, s=slow: as_bits(optimizer.state[p][n])[s].clone())  # type: ignore[misc]
            found += [(read, read()) for read in reads]
    return found


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    """Whether all parameters of two modules are the same, bit for bit."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(as_bits(p.detach()), as_bits(q.detach())) for p, q in pairs)
