"""Without joint steps every step is masked, and a new subset comes after k of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.thin import GROUPS, TOLERANCE, batch, mask_of, net, thin_net
from helpers.thin_oracle import LiteralTraining, loss_of
from torch.optim import SGD, AdamW, Optimizer

import mrreg

MAKE: list[tuple[int, Callable[[Any], Optimizer]]] = [
    (1, lambda p: SGD(p, lr=0.1, momentum=0.9)),
    (3, lambda p: AdamW(p, lr=0.05)),
]


@pytest.mark.parametrize(("k", "make"), MAKE)
def test_each_step_is_a_masked_one(k: int, make: Callable[[Any], Optimizer]) -> None:
    plain, model = net(), thin_net(k=k, boost=None)
    literal = LiteralTraining(plain, GROUPS, make, k, boost=1, rescale=True, joint=False)
    optimizer = make(model.parameters())
    handle = mrreg.attach(optimizer, model, joint=False)
    for t in range(2 * k + 2):
        assert mask_of(model).masked
        expected = literal.step(batch(t))
        optimizer.zero_grad()
        loss = loss_of(model(batch(t)))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        torch.testing.assert_close(loss.detach(), expected, **TOLERANCE)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, **TOLERANCE)
    assert "no joint step" in str(handle)
    assert "    masked steps take" in str(handle)
    assert "mask/steps_to_joint" not in handle.state()


def test_it_is_a_truth_value() -> None:
    model = thin_net()
    with pytest.raises(TypeError, match=r"attach: joint must be True or False, got 'int'"):
        mrreg.attach(SGD(model.parameters(), lr=0.1), model, joint=0)  # type: ignore[arg-type]
