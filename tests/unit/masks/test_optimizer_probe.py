"""A trial on a small tensor tells which optimizers can hold single entries, whatever their class is called."""

from collections.abc import Callable
from typing import Any

import lion_pytorch  # type: ignore[import-untyped]
import pytest
import pytorch_optimizer
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

import mrreg
from mrreg.masks.optimizers import inner_optimizer, refuse_unfit

Make = Callable[[list[nn.Parameter]], Any]
FIT: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD in a warm-up": lambda p: torch.optim.SGD(p, lr=0.0),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), amsgrad=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1),
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "Lion": lion_pytorch.Lion,
    "schedule-free": pytorch_optimizer.ScheduleFreeAdamW,
    "Langevin": lambda p: mrreg.LangevinSGD(p, lr=0.1, momentum=0.9, temperature=0.1),
    "MultirateSGD": lambda p: mrreg.MultirateSGD(p, lr=0.1, k=1),
    "Multirate": lambda p: mrreg.Multirate([(torch.optim.Adam(p), 1)]),
}
UNFIT: dict[str, Make] = {
    "Adafactor": torch.optim.Adafactor,
    "another Adafactor": lambda p: pytorch_optimizer.AdaFactor(p, lr=1e-3),
    "CAME": pytorch_optimizer.CAME,
    "SM3": pytorch_optimizer.SM3,
    "Shampoo": pytorch_optimizer.Shampoo,
    "LAMB": pytorch_optimizer.Lamb,
    "LBFGS": torch.optim.LBFGS,
    "SparseAdam": torch.optim.SparseAdam,
    "closure": pytorch_optimizer.AliG,
}
if hasattr(torch.optim, "Muon"):  # torch 2.9
    UNFIT["Muon"] = torch.optim.Muon


def _parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(3, 3))


@pytest.mark.parametrize("name", FIT)
def test_element_wise_optimizers_are_taken(name: str) -> None:
    p = _parameter()
    optimizer = FIT[name]([p])
    before, state = torch.get_rng_state(), str(optimizer.state_dict())
    p.grad = torch.ones(3, 3)
    refuse_unfit(optimizer, {id(p)})
    assert torch.equal(torch.get_rng_state(), before)
    assert str(optimizer.state_dict()) == state
    assert p.eq(1).all()


@pytest.mark.parametrize("name", UNFIT)
def test_others_are_refused(name: str) -> None:
    p = _parameter()
    optimizer = UNFIT[name]([p])
    with pytest.raises(
        TypeError, match=r"an optimizer whose update is element-wise, got '.*'\. (In a trial|A trial|Its)"
    ):
        refuse_unfit(optimizer, {id(p)})
    refuse_unfit(optimizer, set())  # without masked parameters


class Renamed(torch.optim.SGD):
    """Normalizes every gradient, under the name of an ordinary optimizer."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad /= p.grad.norm()
        return super().step(closure)


def test_what_a_subclass_does_counts() -> None:
    p = _parameter()
    with pytest.raises(TypeError, match=r"got 'Renamed'\. In a trial"):
        refuse_unfit(Renamed([p], lr=0.1), {id(p)})


class Quantized(torch.optim.SGD):
    """Keeps its momentum in eight bits, with one scale for 256 entries."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                blocks = p.grad.flatten().split(256)
                scales = [block.abs().max() / 127 for block in blocks]
                rounded = [(block / scale).round() * scale for block, scale in zip(blocks, scales, strict=True)]
                p -= group["lr"] * torch.cat(rounded).view_as(p)


def test_state_of_low_precision_whose_blocks_share_a_scale_is_refused() -> None:
    p = _parameter()
    with pytest.raises(TypeError, match=r"got 'Quantized'\. In a trial"):
        refuse_unfit(Quantized([p], lr=0.1), {id(p)})


def test_the_groups_options_count() -> None:
    one, two = _parameter(), _parameter()
    groups = [{"params": [one], "adam": True}, {"params": [two], "adam": False}]

    class Mixed(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    p -= p.grad if group["adam"] else p.grad / p.grad.norm()

    optimizer = Mixed(groups, lr=0.1)
    refuse_unfit(optimizer, {id(one)})
    with pytest.raises(TypeError, match="got 'Mixed'"):
        refuse_unfit(optimizer, {id(two)})


def test_parts_that_others_are_made_of_are_tried() -> None:
    class Chained(Optimizer):
        def __init__(self, *parts: Optimizer) -> None:
            super().__init__([g for part in parts for g in part.param_groups], {})
            self.parts = {"all": list(parts)}

        def step(self, closure: Any = None) -> Any:
            raise AssertionError("a trial must not reach the real parameters")

    one, two = _parameter(), _parameter()
    optimizer = Chained(torch.optim.SGD([one], lr=0.1), torch.optim.Adafactor([two]))
    refuse_unfit(optimizer, {id(one)})
    with pytest.raises(TypeError, match="got 'Adafactor'"):
        refuse_unfit(optimizer, {id(two)})


def test_an_optimizer_that_cannot_be_built_again_is_taken() -> None:
    class Special(torch.optim.SGD):
        def __init__(self, params: Any, secret: object) -> None:
            super().__init__(params, lr=0.1)

    p = _parameter()
    refuse_unfit(Special([p], object()), {id(p)})


def test_hooks_of_all_optimizers_do_not_see_the_trial() -> None:
    p, seen = _parameter(), []
    handle = register_optimizer_step_pre_hook(lambda *_: seen.append(1))
    refuse_unfit(torch.optim.SGD([p], lr=0.1), {id(p)})
    handle.remove()
    assert not seen


def test_the_optimizer_inside_is_found() -> None:
    p, q = _parameter(), _parameter()
    base = torch.optim.SGD([p], lr=0.1)

    class Holding(torch.optim.SGD):
        inner: Any

    wrapper, beside = Holding([p], lr=0.1), Holding([p, q], lr=0.1)
    wrapper.inner = beside.inner = base
    assert inner_optimizer(wrapper) is base
    assert inner_optimizer(beside) is beside  # which moves more than the one inside
    assert inner_optimizer(base) is base
    wrapper.inner = wrapper
    assert inner_optimizer(wrapper) is wrapper
