"""What a slow part remembers from cycle to cycle saves look-ups and changes nothing."""

from collections.abc import Callable

import pytest
import torch

import mrreg

Change = Callable[[mrreg.MultirateSGD, list[torch.nn.Parameter]], object]
K = 3


def _no_gradient(_: mrreg.MultirateSGD, params: list[torch.nn.Parameter]) -> None:
    params[1].grad = None


def _momentum(optimizer: mrreg.MultirateSGD, _: list[torch.nn.Parameter]) -> None:
    for group in optimizer.param_groups:
        group["momentum"] = 0.9 - group["momentum"]


def _nesterov(optimizer: mrreg.MultirateSGD, _: list[torch.nn.Parameter]) -> None:
    for group in optimizer.param_groups:
        group["nesterov"] = not group["nesterov"]


def _new_state(optimizer: mrreg.MultirateSGD, params: list[torch.nn.Parameter]) -> None:
    own = optimizer.state[params[1]]
    optimizer.state[params[1]] = {key: v.clone() if isinstance(v, torch.Tensor) else v for key, v in own.items()}


def _no_direction(optimizer: mrreg.MultirateSGD, params: list[torch.nn.Parameter]) -> None:
    own = optimizer.state[params[1]]
    if "direction" in own:
        own["direction"] = None


def _no_state(optimizer: mrreg.MultirateSGD, params: list[torch.nn.Parameter]) -> None:
    del optimizer.state[params[1]]


def _reload(optimizer: mrreg.MultirateSGD, _: list[torch.nn.Parameter]) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def _trained(momentum: float, change: Change, forget: bool) -> list[torch.Tensor]:
    """Six cycles of three slow parameters and a fast one, with a change before the third and the fifth sync step."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(4)) for _ in range(4)]
    optimizer = mrreg.MultirateSGD(params, lr=0.1, k=K, fast=params[3:], momentum=momentum)
    for t in range(6 * K):
        for p in params:
            p.grad = torch.randn(4)
        if t in (2 * K, 4 * K):
            change(optimizer, params)
        if forget:
            for stepper in optimizer._engine.steppers:
                stepper.forget_directions()
        optimizer.step()
    states = [v for own in optimizer.state_dict()["state"].values() for v in own.values() if torch.is_tensor(v)]
    return [p.detach() for p in params] + states


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("change", [_no_gradient, _momentum, _nesterov, _new_state, _no_direction, _no_state, _reload])
def test_looking_everything_up_at_every_step_gives_the_same_bits(momentum: float, change: Change) -> None:
    if change is _nesterov and not momentum:
        pytest.skip("torch wants momentum for Nesterov's")
    short, full = (_trained(momentum, change, forget) for forget in (False, True))
    assert len(short) == len(full)
    assert all(map(torch.equal, short, full))
