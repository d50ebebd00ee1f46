"""The callbacks attach once for each optimizer, and need their framework only where they are imported."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import mrreg

FRAMEWORKS = ("transformers", "lightning")


def callback(framework: str, **options: Any) -> Any:
    pytest.importorskip(framework)
    return importlib.import_module(f"mrreg.integrations.{framework}").MultirateCallback(**options)


def begin(each: Any, optimizer: Any, model: Any) -> None:
    """What a trainer calls when training begins."""
    if hasattr(each, "on_fit_start"):
        each.on_fit_start(SimpleNamespace(optimizers=[optimizer]), model)
    else:
        each.on_train_begin(None, None, None, model=model, optimizer=optimizer)


def masked() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(mrreg.MultirateMask(nn.Linear(4, 3), p=0.5, k=5))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_second_training_goes_on_with_the_clock_of_the_same_optimizer(framework: str) -> None:
    model, optimizer = masked()
    each = callback(framework, seed=7)
    begin(each, optimizer, model)
    step(model, optimizer)
    begin(each, optimizer, model)
    step(model, optimizer)
    assert (optimizer.param_groups[0]["mask_clock"], optimizer.param_groups[0]["mask_seed"]) == (2, 7)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_new_optimizer_takes_the_masks_over(framework: str) -> None:
    model, first = masked()
    each = callback(framework)
    begin(each, first, model)
    step(model, first)
    second = torch.optim.SGD(model.parameters(), lr=0.1)
    begin(each, second, model)
    step(model, second)
    assert second.param_groups[0]["mask_clock"] == 1
    assert "mask_clock" not in first.param_groups[0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_missing_framework_is_named_with_its_remedy(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.setitem(sys.modules, f"{framework}.pytorch", None)
    monkeypatch.delitem(sys.modules, f"mrreg.integrations.{framework}", raising=False)
    with pytest.raises(
        ImportError, match=f"mrreg.integrations.{framework} needs {framework}.*: pip install {framework}$"
    ):
        importlib.import_module(f"mrreg.integrations.{framework}")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_options_of_attach_are_passed_on(framework: str) -> None:
    model, optimizer = masked()
    each = callback(framework, joint=False)
    begin(each, optimizer, model)
    assert "no joint step" in str(each.handle)
