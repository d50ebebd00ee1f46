"""Langevin dynamics in one part: the stationary variance on a quadratic is the exact one, as a fast and as a slow part.

The oracle composes the linear map of one cycle, noise included, and solves its discrete Lyapunov equation. Thousands
of independent chains are the entries of one parameter.
"""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_discrete_lyapunov  # type: ignore[import-untyped, unused-ignore]
from torch import nn

from mrreg import LangevinSGD, Multirate

pytestmark = [pytest.mark.paper, pytest.mark.filterwarnings("ignore:.*no forward of the model was seen")]

Array = NDArray[np.float64]

CHAINS = 10_000
LR = 0.05
MU = [0.0, 0.5, 0.9]
HESSIAN = np.array([[1.0, 0.4], [0.4, 0.7]])  # of the loss in (fast, slow)


def stationary(
    mu: tuple[float, float], tau: tuple[float, float], k: int, *, drift: bool = True, lr: float = LR
) -> Array:
    """Covariance of (fast, slow) right before a sync step. State: theta_F, theta_S, buffer_F, buffer_S."""
    total, covariance = np.eye(4), np.zeros((4, 4))
    sizes = [np.sqrt(2 * (1 - m) * t / h) for m, t, h in zip(mu, tau, (lr, k * lr), strict=True)]
    for step in range(k):
        force, noise = np.eye(4), np.zeros((4, 2))
        for i in (0, 1):
            if i == 0 or step == 0:
                force[2 + i] = [*HESSIAN[i], 0, 0]
                force[2 + i, 2 + i] = mu[i]
                noise[2 + i, i] = sizes[i]
        move = np.eye(4)
        move[0, 2] = -lr
        move[1, 3] = -lr if drift else -k * lr * (step == 0)
        step_map, step_noise = move @ force, move @ noise
        total = step_map @ total
        covariance = step_map @ covariance @ step_map.T + step_noise @ step_noise.T
    solution: Array = solve_discrete_lyapunov(total, covariance)
    return solution[:2, :2]


def sample(mu: tuple[float, float], tau: tuple[float, float], k: int, *, drift: bool = True, cycles: int) -> Array:
    """The same covariance over chains run by the optimizer."""
    fast, slow = (nn.Parameter(torch.zeros(CHAINS, dtype=torch.float64)) for _ in range(2))
    bases = [LangevinSGD([p], lr=LR, momentum=m, temperature=t) for p, m, t in zip((fast, slow), mu, tau, strict=True)]
    optimizer = Multirate(list(zip(bases, (1, k), strict=True)), drift=drift, model=nn.ParameterList([slow, fast]))
    for _ in range(cycles * k):
        loss = HESSIAN[0, 0] / 2 * fast.square() + HESSIAN[0, 1] * fast * slow + HESSIAN[1, 1] / 2 * slow.square()
        loss.sum().backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimizer.step()
        optimizer.zero_grad()
    return np.cov(torch.stack([fast.detach(), slow.detach()]).numpy())


def check(found: Array, exact: Array) -> None:
    """Within three standard errors of a covariance of Gaussian chains."""
    variances = np.diag(exact)
    errors = np.sqrt((np.outer(variances, variances) + exact**2) / CHAINS)
    assert (np.abs(found - exact) <= 3 * errors).all(), (found - exact) / errors


@pytest.mark.parametrize("mu", MU)
def test_alone_against_the_exact_solution(mu: float) -> None:
    """One part, one eigenvalue a: theta and its buffer under LangevinSGD without the engine."""
    a, tau = 0.7, 0.3
    theta = nn.Parameter(torch.zeros(CHAINS, dtype=torch.float64))
    optimizer = LangevinSGD([theta], lr=LR, momentum=mu, temperature=tau)
    for _ in range(300):
        theta.grad = a * theta.detach()
        optimizer.step()
    kick = np.sqrt(2 * (1 - mu) * tau / LR) * np.array([[-LR], [1.0]])
    step = np.array([[1 - LR * a, -LR * mu], [a, mu]])
    exact = solve_discrete_lyapunov(step, kick @ kick.T)[0, 0]
    assert abs(theta.detach().var().item() - exact) <= 3 * exact * np.sqrt(2 / CHAINS)
    assert exact == pytest.approx(tau / a, rel=LR)


@pytest.mark.parametrize("drift", [True, False])
@pytest.mark.parametrize("mu", MU)
@pytest.mark.parametrize("tau", [(0.3, 0.3), (0.3, 0.0), (0.0, 0.3)], ids=["both", "fast", "slow"])
def test_in_a_part_against_the_exact_solution(mu: float, tau: tuple[float, float], drift: bool) -> None:
    exact = stationary((mu, mu), tau, 5, drift=drift)
    check(sample((mu, mu), tau, 5, drift=drift, cycles=60), exact)


def test_different_momenta_in_the_parts() -> None:
    check(sample((0.9, 0.5), (0.1, 0.4), 5, cycles=60), stationary((0.9, 0.5), (0.1, 0.4), 5))


@pytest.mark.parametrize("drift", [True, False])
@pytest.mark.parametrize("mu", MU)
def test_the_temperature_is_right_in_a_slow_part(mu: float, drift: bool) -> None:
    """Both parts at one temperature: the exact solution tends to tau / Hessian with the step size, as for k = 1."""
    wanted = 0.3 * np.linalg.inv(HESSIAN)
    for lr, k in ((LR, 1), (LR / 10, 5), (LR / 100, 5)):
        exact = stationary((mu, mu), (0.3, 0.3), k, drift=drift, lr=lr)
        assert np.abs(exact - wanted).max() <= lr * k * wanted.max()
