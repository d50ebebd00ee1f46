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
from mrreg.masks.optimizers import examine, inner_optimizer

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
    "CAME": pytorch_optimizer.CAME,
    "Shampoo": pytorch_optimizer.Shampoo,
    "LAMB": pytorch_optimizer.Lamb,
    "SparseAdam": torch.optim.SparseAdam,
    "closure": pytorch_optimizer.AliG,
    "Prodigy": pytorch_optimizer.Prodigy,
    "D-adaptation": pytorch_optimizer.DAdaptAdam,
    "projected": pytorch_optimizer.AdamP,
    "blocks of state": pytorch_optimizer.EmoFact,
    "reduced over time": pytorch_optimizer.AdaShift,
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
    p.grad, seen = torch.ones(3, 3), []
    handle = register_optimizer_step_pre_hook(lambda *_: seen.append(1))  # of all optimizers
    examine(optimizer, {id(p)})
    handle.remove()
    assert not seen
    assert torch.equal(torch.get_rng_state(), before)
    assert str(optimizer.state_dict()) == state
    assert p.eq(1).all()


@pytest.mark.parametrize("name", UNFIT)
def test_others_are_refused(name: str) -> None:
    p = _parameter()
    optimizer = UNFIT[name]([p])
    with pytest.raises(
        TypeError, match=r"an optimizer whose update is element-wise, got '.*'\. (In a trial|A trial|It)"
    ):
        examine(optimizer, {id(p)})
    examine(optimizer, set())  # without masked parameters


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
    examine(optimizer, {id(one)})
    with pytest.raises(TypeError, match="got 'Mixed'"):
        examine(optimizer, {id(two)})


def test_parts_that_others_are_made_of_are_tried() -> None:
    class Chained(Optimizer):
        def __init__(self, *parts: Optimizer) -> None:
            super().__init__([g for part in parts for g in part.param_groups], {})
            self.parts = {"all": list(parts)}

        def step(self, closure: Any = None) -> Any:
            raise AssertionError("a trial must not reach the real parameters")

    one, two = _parameter(), _parameter()
    optimizer = Chained(torch.optim.SGD([one], lr=0.1), torch.optim.Adafactor([two]))
    examine(optimizer, {id(one)})
    with pytest.raises(TypeError, match="got 'Adafactor'"):
        examine(optimizer, {id(two)})


class Late(torch.optim.SGD):
    """One step size for all, which it estimates from its third step on and keeps in its groups; built with a secret."""

    def __init__(self, params: Any, secret: object, scale: bool = True) -> None:
        super().__init__(params, lr=0.1)
        self.scale, self.steps = scale, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        group = self.param_groups[0]
        if self.steps > 2 and self.scale:
            group["seen"] = max(group.get("seen", 0.0), *(float(p.grad.abs().max()) for p in group["params"]))
        return super().step(closure)


def test_what_is_noted_for_later_counts_also_where_the_constructor_is_unknown() -> None:
    p = _parameter()
    assert examine(Late([p], object(), scale=False), {id(p)}) == {id(p)}
    with pytest.raises(TypeError, match=r"got 'Late'\. In a trial"):
        examine(Late([p], object()), {id(p)})


class Kept(torch.optim.SGD):
    """Momentum where nobody looks for it, or of another shape."""

    outside = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            known = self.param_groups[0].setdefault("buffers", {}) if self.outside else self.state[p]
            buffer = known.setdefault("flat", torch.zeros(p.numel()))
            p.sub_(buffer.mul_(0.9).add_(p.grad.flatten()).view_as(p), alpha=0.1)


def test_state_that_is_not_held_is_refused_by_its_name() -> None:
    p = _parameter()
    with pytest.raises(TypeError, match=r"'Kept'\. It keeps 'group.buffers.flat', which is no state"):
        examine(Kept([p]), {id(p)})
    Kept.outside = False
    with pytest.raises(TypeError, match=r"'Kept'\. It keeps 'flat', which is no state"):
        examine(Kept([p]), {id(p)})


def test_what_moves_by_a_multiple_of_the_gradient_is_told_from_the_rest() -> None:
    p = _parameter()
    plain: list[Optimizer] = [
        torch.optim.SGD([p], lr=0.1, weight_decay=0.1, maximize=True),
        mrreg.LangevinSGD([p], lr=0.1, temperature=0.1),
        pytorch_optimizer.SGDW([p], lr=0.1, momentum=0.0),
        mrreg.Multirate([(torch.optim.SGD([p], lr=0.1), 1)]),
    ]
    others: list[Optimizer] = [
        torch.optim.SGD([p], lr=0.1, momentum=0.1),
        pytorch_optimizer.SignSGD([p], lr=0.1, momentum=0.0),
        pytorch_optimizer.ScheduleFreeSGD([p], lr=0.1),
        mrreg.LangevinSGD([p], lr=0.1, momentum=0.5),
        torch.optim.AdamW([p]),
    ]
    assert [examine(each, {id(p)}) for each in plain] == [{id(p)}] * len(plain)
    assert [examine(each, {id(p)}) for each in others] == [set()] * len(others)
    groups: list[dict[str, Any]] = [{"params": [p]}, {"params": [q := _parameter()], "momentum": 0.9}]
    assert examine(torch.optim.SGD(groups, lr=0.1), {id(p), id(q)}) == {id(p)}


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
