"""Any training under a policy for BatchNorm statistics is the one in which the user does it by hand."""

import copy
from typing import Any

import pytest
import torch
from helpers.batch_norm import POLICIES, batch, network, same, slow_trunk
from hypothesis import given
from hypothesis import strategies as st

import mrreg

pytestmark = pytest.mark.filterwarnings("ignore:.*no forward of the model was seen")  # by a copy

EVENTS = ("forward", "evaluate", "fail", "step", "step", "reload", "copy")


def forward(model: Any, t: int, policy: str, due: bool) -> None:
    """By hand: statistics put back after a forward that must not move them, or the layer in evaluation mode."""
    model.train()
    layer = model[1]
    layer.train(policy != "never")
    kept = copy.deepcopy(layer.state_dict())
    model(batch(t)).square().mean().backward()
    if policy == "sync" and not due:
        with torch.no_grad():
            for name, buffer in layer.named_buffers():
                buffer.copy_(kept[name])


@given(st.integers(2, 4), st.sampled_from(POLICIES), st.lists(st.sampled_from(EVENTS), max_size=20))
def test_as_by_hand(k: int, policy: str, events: list[str]) -> None:
    model, plain = network(), network()
    optimizer, other = slow_trunk(model, k), slow_trunk(plain, k)
    handle = mrreg.batch_norm(optimizer, model, policy)
    for t, event in enumerate(events):
        if event == "evaluate":
            model.eval()
            model(batch(t))
        elif event == "fail":
            try:
                model[1].train()(torch.ones(6))
            except ValueError:
                continue
        elif event == "reload":
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model = network()
            optimizer = slow_trunk(model, k)
            handle = mrreg.batch_norm(optimizer, model, policy)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            other.zero_grad()  # gradients are not saved, nor copied
        elif event == "copy":
            model, optimizer = copy.deepcopy((model, optimizer))
            handle = mrreg.batch_norm(optimizer, model, policy)
            other.zero_grad()
        else:
            model.train()
            model(batch(t)).square().mean().backward()
            forward(plain, t, policy, due=optimizer.due[1])
        if event == "step":
            for each in (optimizer, other):
                each.step()
                each.zero_grad()
    assert handle.statistics == policy
    assert same(model, plain)
