"""Multirate against the paper's algorithms, after every step and with the state."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from paper import oracles
from paper.oracles import Array, Batch, State
from torch import Tensor
from torch.nn import Parameter, ParameterList

import mrreg

pytestmark = [pytest.mark.paper, pytest.mark.filterwarnings("ignore:.*no forward of the model was seen")]

CYCLES = 6
KS = (1, 2, 3, 5)
LR = 0.05


@pytest.fixture
def start() -> list[Array]:
    draw = np.random.default_rng(0)
    return [draw.normal(size=(4, 3)), draw.normal(size=3), draw.normal(size=1)]


@pytest.fixture
def batches() -> list[Batch]:
    draw = np.random.default_rng(1)
    return [(draw.normal(size=(8, 4)), draw.normal(size=8)) for _ in range(CYCLES * 12)]


def loss(theta: list[Parameter], batch: Batch) -> Tensor:
    x, y = (torch.from_numpy(part) for part in batch)
    a, b, c = theta
    return 0.5 * ((x @ a).tanh() @ b + c - y).square().mean()


def trained(
    build: Callable[[list[Parameter]], torch.optim.Optimizer],
    start: list[Array],
    batches: list[Batch],
    key: str | None = "momentum_buffer",
) -> Iterator[State]:
    """Parameters, and where there is one a state tensor of each, after every step."""
    theta = [Parameter(torch.from_numpy(value).clone()) for value in start]
    optimizer = build(theta)
    for batch in batches:
        torch.autograd.backward(loss(theta, batch))
        optimizer.step()
        optimizer.zero_grad()
        kept = [optimizer.state[p][key].numpy().copy() for p in theta] if key else []
        yield [p.detach().numpy().copy() for p in theta], kept


def agree(ours: Iterator[State], theirs: Iterator[State], steps: int) -> None:
    count = 0
    for (theta, momenta), (expected, expected_momenta) in zip(ours, theirs, strict=True):
        for mine, their in zip(theta + momenta, expected + expected_momenta[: len(momenta)], strict=True):
            np.testing.assert_allclose(mine, their, rtol=0.0, atol=1e-12)
        count += 1
    assert count == steps


def slow_first(**options: Any) -> Callable[[list[Parameter]], torch.optim.Optimizer]:
    return lambda theta: mrreg.MultirateSGD(ParameterList(theta), fast=theta[1:], **options)


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize(("mu", "omega"), [(0.9, 0.0), (0.5, 0.1), (0.0, 0.1)])
def test_algorithm_1_and_a1(start: list[Array], batches: list[Batch], k: int, mu: float, omega: float) -> None:
    """Algorithms 1 (linear drift) and A1 (with weight decay); at mu = 0 a momentum is one gradient with its decay."""
    used = batches[: CYCLES * k]
    build = slow_first(lr=LR, k=k, momentum=mu, weight_decay=omega)
    ours = trained(build, start, used, "momentum_buffer" if mu else None)
    agree(ours, oracles.algorithm_1(start, used, k * LR, k, mu, omega), len(used))


@pytest.mark.parametrize("k", KS)
def test_algorithm_2(start: list[Array], batches: list[Batch], k: int) -> None:
    """Algorithm 2 (no drift), both gradients from one backward pass."""
    used = batches[: CYCLES * k]
    theirs = oracles.algorithm_2(start, used, k * LR, k, 0.9, gradients_first=True)
    agree(trained(slow_first(lr=LR, k=k, momentum=0.9, drift=False), start, used), theirs, len(used))


def test_algorithm_2_differs_from_the_paper_in_the_first_fast_gradient(
    start: list[Array], batches: list[Batch]
) -> None:
    """Differs from the paper: it moves the slow parameters before the first fast gradient of a cycle is taken."""
    ours = list(oracles.algorithm_2(start, batches[:15], 5 * LR, 5, 0.9, gradients_first=True))
    paper = list(oracles.algorithm_2(start, batches[:15], 5 * LR, 5, 0.9, gradients_first=False))
    np.testing.assert_array_equal(ours[0][0][0], paper[0][0][0])  # the slow move is the same
    assert not np.allclose(ours[0][0][1], paper[0][0][1], rtol=0.0, atol=1e-12)  # the fast one is not


@pytest.mark.parametrize("ratios", [(2, 2), (3, 2), (2, 5), (1, 3), (3, 1)])
def test_three_scales(start: list[Array], batches: list[Batch], ratios: tuple[int, int]) -> None:
    """Section 3: step sequences divided recursively."""
    whole = ratios[0] * ratios[1]
    used = batches[: CYCLES * whole]

    def build(theta: list[Parameter]) -> torch.optim.Optimizer:
        periods = (whole, ratios[1], 1)
        bases = [torch.optim.SGD([p], lr=LR, momentum=0.9) for p in theta]
        return mrreg.Multirate(list(zip(bases, periods, strict=True)), model=ParameterList(theta))

    agree(trained(build, start, used), oracles.scales(start, used, whole * LR, ratios, 0.9), len(used))


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_holds_its_direction(start: list[Array], batches: list[Batch], k: int, weight_decay: float) -> None:
    """Moments and step count advance at sync steps only; the direction includes the decay."""
    used = batches[: CYCLES * k]
    theirs = oracles.held_adamw(start, used, 0.01, k, (0.9, 0.99), 1e-8, weight_decay)

    def build(theta: list[Parameter]) -> torch.optim.Optimizer:
        return mrreg.MultirateAdamW(
            ParameterList(theta), lr=0.01, k=k, fast=theta[1:], betas=(0.9, 0.99), weight_decay=weight_decay
        )

    agree(trained(build, start, used, "exp_avg"), theirs, len(used))


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize(("word", "drift"), [("mean", True), ("sum", False), ("mean", False)])
def test_gathered_gradients(start: list[Array], batches: list[Batch], k: int, word: str, drift: bool) -> None:
    """A slow part that moves by all gradients of its cycle."""
    used = batches[: CYCLES * k]
    theirs = oracles.gathered(start, used, LR, k, mean=word == "mean", drift=drift)
    agree(trained(slow_first(lr=LR, k=k, drift=drift, gradient=word), start, used, None), theirs, len(used))


def test_a_changing_lr_scales_the_drift_of_the_moment(start: list[Array], batches: list[Batch]) -> None:
    """theta_S moves by the current lr times the momentum, also where the lr was 0 at the sync step."""
    rates = [0.0, 0.1, 0.05, 0.02, 0.01, 0.03]

    def build(theta: list[Parameter]) -> torch.optim.Optimizer:
        optimizer = slow_first(lr=1.0, k=3, momentum=0.9)(theta)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: rates[t % 6])
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer

    theta, momenta = start, [np.zeros_like(value) for value in start]
    for t, ((found, buffers), rate) in enumerate(zip(trained(build, start, batches[:6]), rates, strict=True)):
        g = oracles.gradients(theta, batches[t])
        momenta = [0.9 * p + g[i] if i > 0 or t % 3 == 0 else p for i, p in enumerate(momenta)]
        theta = [value - rate * p for value, p in zip(theta, momenta, strict=True)]
        for mine, their in zip(found + buffers, theta + momenta, strict=True):
            np.testing.assert_allclose(mine, their, rtol=0.0, atol=1e-12)


def test_permuting_parameters_changes_nothing(start: list[Array], batches: list[Batch]) -> None:
    def built(order: tuple[int, ...]) -> Callable[[list[Parameter]], torch.optim.Optimizer]:
        options: dict[str, Any] = {"lr": LR, "k": 3, "momentum": 0.9, "weight_decay": 0.1}
        return lambda theta: mrreg.MultirateSGD(
            [theta[i] for i in order], fast=theta[1:], model=ParameterList(theta), **options
        )

    plain = list(trained(built((0, 1, 2)), start, batches[:12]))
    for order in ((2, 1, 0), (1, 0, 2)):
        agree(trained(built(order), start, batches[:12]), iter(plain), 12)
