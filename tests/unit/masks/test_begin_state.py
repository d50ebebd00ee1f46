"""State that a masked step makes has at absent entries what the optimizer begins with, in dicts and lists too."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import pytorch_optimizer
import torch
from helpers.masks import train
from helpers.thin import group
from torch import Tensor, nn

import mrreg
from mrreg.masks.install import install
from mrreg.masks.optimizers import begun, leaves

DECAY: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
GROUP = group("0", 10, 5, producer=[("0.weight", 0), ("0.bias", 0)], consumer=[("2.weight", 1)])
Begin = Callable[[Tensor], Any]


class Everything(torch.optim.Optimizer):
    """Step sizes, a copy of the weights in another precision, and momenta in lists and dicts."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.02, "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.param_groups:
            for p in each["params"]:
                if p not in self.state:
                    momenta = [torch.zeros_like(p), {"slow": (torch.ones_like(p), "name")}]
                    self.state[p] = {"rates": torch.full_like(p, each["lr"]), "master": p.double(), "momenta": momenta}
                state, force = self.state[p], p.grad + each["weight_decay"] * p
                state["rates"] *= 1 + p.grad.sign() / 10
                state["momenta"][0].lerp_(force, 0.1)
                state["momenta"][1]["slow"][0].add_(force)
                state.setdefault("first", force.clone())
                state["master"] -= state["rates"] * state["momenta"][0]
                p.copy_(state["master"])


KINDS: dict[str, tuple[Callable[[Any], Any], dict[Any, Begin]]] = {
    "Adam": (lambda p: torch.optim.Adam(p, **DECAY), {"exp_avg": lambda _: 0, "exp_avg_sq": lambda _: 0}),
    "Rprop": (lambda p: torch.optim.Rprop(p, lr=0.03), {"step_size": lambda _: 0.03, "prev": lambda _: 0}),
    "Adagrad": (lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.2), {"sum": lambda _: 0.2}),
    "schedule-free": (
        lambda p: pytorch_optimizer.ScheduleFreeAdamW(p, **DECAY),
        {"z": lambda w: w, "exp_avg_sq": lambda _: 0},
    ),
    "everything": (
        Everything,
        {
            "rates": lambda _: 0.02,
            "master": lambda w: w.double(),
            "first": lambda _: 0,
            ("momenta", 0): lambda _: 0,
            ("momenta", 1, "slow", 0): lambda _: 1,
        },
    ),
}


@pytest.mark.parametrize(("kind", "structure"), [*zip([*KINDS] * 2, cycle(["thin", "weight", "input"]))])
def test_absent_entries_have_what_the_optimizer_begins_with_until_they_move(kind: str, structure: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    if structure == "thin":
        install(model, [GROUP], k=3)
    else:
        mrreg.mask(model, {"0": 0.5}, k=3, structure=structure)
    make, begin = KINDS[kind]
    layer: Any = model[0]
    optimizer, weight = make(model.parameters()), layer.weight
    mrreg.attach(optimizer, model)
    before = weight.detach().clone()
    for t in range(3):
        train(model, optimizer, range(t, t + 1))
        if t == 0:
            absent = weight.detach() == before
            assert 0 < absent.sum() < absent.numel()
        found = leaves(optimizer.state[weight])
        for name, value in begin.items():
            path = name if isinstance(name, tuple) else (name,)
            expected = torch.as_tensor(value(before), dtype=found[path].dtype).expand(before.shape)
            assert found[path].shape == before.shape
            assert torch.equal(found[path][absent], expected[absent]) or t == 2
            assert t != 1 or not torch.equal(found[path][~absent], expected[~absent])
    assert not (weight == before).any()
    assert (weight - before)[absent].abs().max() < 0.5


def test_moments_of_tiny_weights_are_no_copies_of_them() -> None:
    weight = nn.Parameter(torch.full((3, 4), -1e-9))
    state = begun(torch.optim.AdamW([weight]), weight)
    assert not state[("exp_avg",)].any()
    assert not state[("exp_avg_sq",)].any()
