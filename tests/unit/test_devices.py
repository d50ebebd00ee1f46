"""Every tensor and generator that mrreg makes names its device: `torch.set_default_device` moves none of them."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._device import _device_constructors

import mrreg

X = torch.ones(4, 8)
FACTORIES = {*_device_constructors(), torch.Generator}


def _names_no_device(call: ast.Call) -> bool:
    """Whether this calls a function of torch that makes something on the default device."""
    if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func.value) != "torch":
        return False
    made = getattr(torch, call.func.attr, None)
    named = any(each.arg == "device" for each in call.keywords) or (made is torch.Generator and call.args)
    return made in FACTORIES and not named


def _calls(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _names_no_device(node)]
    return [f"{path.name}:{call.lineno}: {ast.unparse(call)}" for call in calls]


def test_every_factory_call_names_its_device() -> None:
    assert [found for path in Path(mrreg.__file__).parent.rglob("*.py") for found in _calls(path)] == []


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))


def _multirate(model: nn.Module) -> torch.optim.Optimizer:
    noisy = mrreg.LangevinSGD(model.get_submodule("3").parameters(), lr=0.1, temperature=1e-3)
    slow = torch.optim.AdamW(model.get_submodule("0").parameters(), lr=0.1)
    return mrreg.Multirate([(noisy, 1), (slow, 3)], model=model)


PREPARED: dict[str, Callable[[nn.Module], Any]] = {
    "thin": lambda model: mrreg.thin(model, k=3, example_inputs=X),
    "swap_dropout": lambda model: mrreg.swap_dropout(model, k=3, example_inputs=X),
    "mask": lambda model: mrreg.mask(model, {"0": 0.5}, k=3),
    "multirate": _multirate,
    "audit": lambda model: mrreg.audit(model, "3", X),
}


@pytest.mark.parametrize("name", PREPARED)
def test_a_default_device_that_holds_nothing_disturbs_nobody(name: str) -> None:
    losses = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        model = _net()
        with torch.device(device):
            made = PREPARED[name](model)
            optimizer = made if name == "multirate" else torch.optim.AdamW(model.parameters(), lr=0.1)
            if isinstance(made, tuple) or name == "mask":
                assert "step" in str(mrreg.attach(optimizer, model))
            for _ in range(7):
                loss = model(X).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == losses[1]
