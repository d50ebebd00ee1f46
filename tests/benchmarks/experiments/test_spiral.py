"""The spiral benchmark: its data, and every method against a literal NumPy loop."""

import math
from collections.abc import Callable
from itertools import islice

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks.core.comparison import Job
from benchmarks.core.training import Loop
from benchmarks.experiments import spiral

Array = npt.NDArray[np.float64]
Theta = dict[str, Array]
H, K = 0.2, 5
WEIGHTS, HIDDEN, OUTPUT = ("w1", "w2"), ("b1",), ("b2",)


# The literal reading: one network, one loop, hand-written gradients, float64.


def gradient(theta: Theta, x: Array, y: Array) -> Theta:
    z = x @ theta["w1"].T + theta["b1"]  # (N, width)
    active = np.maximum(z, 0)
    logit = active @ theta["w2"].T + theta["b2"]  # (N, 1)
    delta = (1 / (1 + np.exp(-logit)) - y[:, None]) / len(y)
    back = (delta @ theta["w2"]) * (z > 0)
    return {"w1": back.T @ x, "b1": back.sum(0), "w2": delta.T @ active, "b2": delta.sum(0)}


Update = Callable[[int, Theta, Theta, Theta], None]  # step, parameters, gradient, what the method remembers


def ordinary(rates: dict[str, float], momentum: float = 0.0) -> Update:
    def update(t: int, theta: Theta, g: Theta, memory: Theta) -> None:
        for name in theta:
            memory[name] = momentum * memory.get(name, np.zeros_like(g[name])) + g[name]
            theta[name] = theta[name] - rates.get(name, H) * memory[name]

    return update


def multirate(slow: tuple[str, ...], momentum: float = 0.0) -> Update:
    """Algorithm 1: the slow part takes a gradient every k steps and moves along it at every step."""

    def update(t: int, theta: Theta, g: Theta, memory: Theta) -> None:
        for name in theta:
            if name not in slow or t % K == 0:
                memory[name] = momentum * memory.get(name, np.zeros_like(g[name])) + g[name]
            theta[name] = theta[name] - H * memory[name]

    return update


def rare(rate: float) -> Update:
    """The biases move once in k steps by rate times their gradient, and rest in between."""

    def update(t: int, theta: Theta, g: Theta, memory: Theta) -> None:
        for name in theta:
            if name in WEIGHTS:
                theta[name] = theta[name] - H * g[name]
            elif t % K == 0:
                theta[name] = theta[name] - rate * g[name]

    return update


ORACLES: dict[str, Update] = {
    "SGD": ordinary({}),
    "multirate, all biases": multirate(HIDDEN + OUTPUT),
    "multirate, input biases": multirate(HIDDEN),
    "multirate, output bias": multirate(OUTPUT),
    "biases at 5h every step": ordinary({"b1": K * H, "b2": K * H}),
    "biases frozen, same step size": rare(H),
    "multirate, no drift": rare(K * H),
    "SGD, momentum 0.9": ordinary({}, momentum=0.9),
    "multirate, momentum 0.9": multirate(HIDDEN + OUTPUT, momentum=0.9),
}


def training(method: str) -> Loop:
    """The training of seed 3 in double precision: 20 mini-batches an epoch."""
    job = Job("compare", 30, None, torch.device("cpu"), None, method)
    loop = spiral.build(spiral.PRESETS["smoke"], spiral.METHODS[method], 3, job)
    loop.model.double()
    return loop


@pytest.mark.parametrize("method", spiral.METHODS)
def test_method_is_the_literal_loop(method: str) -> None:
    loop, other = training(method), training(method)
    theta = {
        n: p.detach().numpy().copy() for n, p in zip(("w1", "b1", "w2", "b2"), loop.model.parameters(), strict=True)
    }
    loop.batches, memory = ((x.double(), y.double()) for x, y in loop.batches), Theta()
    for t, (x, y) in enumerate(islice(other.batches, 30)):  # six cycles, over the end of an epoch
        ORACLES[method](t, theta, gradient(theta, x.double().numpy(), y.double().numpy()), memory)
        loop.step()
    for mine, name in zip(loop.model.parameters(), theta, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theta[name], rtol=0, atol=1e-12, err_msg=name)


def test_spirals_lie_on_the_curve() -> None:
    x, y = spiral.spirals(2000, torch.Generator().manual_seed(1))
    assert x.shape == (2000, 2)
    assert y.sum() == 1000
    radius = x.norm(dim=1)
    assert radius.max() < spiral.RADIUS + 0.1
    # t uniform and p = 1/2: the squared radius is uniform on [0, a^2)
    assert (radius**2).mean().item() == pytest.approx(2.0, abs=0.1)
    turned = x * (1 - 2 * y).unsqueeze(1)  # the second spiral turned onto the first
    angle = torch.atan2(turned[:, 1], turned[:, 0])
    along = 2 * math.pi * spiral.TURNS * radius / spiral.RADIUS
    off = torch.remainder(angle - along + math.pi, 2 * math.pi) - math.pi
    far = radius > 0.5
    assert (off * radius)[far].abs().mean() < 0.5  # noise 0.02 in radius is 4 pi times that along the arc
    assert off[far].mean().abs() < 0.02
