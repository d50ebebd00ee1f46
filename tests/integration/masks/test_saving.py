"""Saving and loading at every step of two cycles goes on bit for bit, whatever the random state."""

import copy
import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import masks, mlp, of, same_bits, train
from torch import nn
from torch.optim import Optimizer

import mrreg

MAKE: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.1, amsgrad=True),
}
END = 7


def _saved(model: nn.Module, optimizer: Optimizer) -> io.BytesIO:
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("name", "structure", "attach_first"),
    [("sgd", "input", True), ("momentum", "weight", False), ("adamw", "weight", True), ("adamw", "input", False)],
)
def test_resuming_at_every_step_is_bit_exact(name: str, structure: str, attach_first: bool) -> None:
    model = mlp(structure=structure)
    optimizer = MAKE[name](model)
    mrreg.attach(optimizer, model, seed=11)
    files = []
    losses = []
    for t in range(END):
        files.append(_saved(model, optimizer))
        losses += train(model, optimizer, range(t, t + 1))
    for t, file in enumerate(files):
        torch.manual_seed(t + 100)
        saved: dict[str, Any] = torch.load(file, weights_only=True)
        twin = mlp(structure=structure)
        other = MAKE[name](twin)
        if attach_first:  # with another seed: the saved one wins
            mrreg.attach(other, twin)
        twin.load_state_dict(saved["model"])
        other.load_state_dict(saved["optimizer"])
        if not attach_first:
            mrreg.attach(other, twin)
        assert train(twin, other, range(t, END)) == losses[t:]
        assert same_bits(model, twin)


def test_loading_an_optimizer_that_never_had_masks_starts_the_first_cycle_and_k_is_loaded() -> None:
    model = mlp()
    optimizer = MAKE["momentum"](model)
    plain = optimizer.state_dict()
    mrreg.attach(optimizer, model, seed=5)
    train(model, optimizer, 4)
    optimizer.load_state_dict(plain)
    group = optimizer.param_groups[0]
    assert (group["mask_clock"], group["mask_k"], group["mask_seed"]) == (0, 3, 5)
    assert all(of(mask).masking for mask in masks(model))
    other = mlp(k=7)
    fresh = MAKE["momentum"](other)
    mrreg.attach(fresh, other)
    fresh.load_state_dict(optimizer.state_dict())
    assert [of(mask).k for mask in masks(other)] == [3, 3]  # as lr, it comes from the checkpoint


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_saved_in_a_step_or_after_an_interrupted_one_has_the_momentum_of_slow_entries(
    inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mrreg.attach(optimizer, model)
    train(model, optimizer, range(3))
    before, files = copy.deepcopy(optimizer.state_dict()), []

    def interrupted(*_: Any, **__: Any) -> None:
        if inside:
            files.append(_saved(model, optimizer))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["torch.optim.sgd"], "sgd", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, range(3, 4))
    files.append(_saved(model, optimizer))
    for file in files:
        saved = torch.load(file)["optimizer"]
        torch.testing.assert_close(saved["state"], before["state"], rtol=0, atol=0)
    optimizer.zero_grad()
    optimizer.step()
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"], rtol=0, atol=0)
