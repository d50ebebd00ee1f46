"""The paper's algorithms read literally, in NumPy float64 and with the paper's letters.

The problem: a batch (X, y), predictions tanh(X A) b with A slow and b fast, half the mean squared error. With three
scales, c is a constant added to the prediction. Every generator yields all parameters and momenta after every step.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Batch: TypeAlias = tuple[Array, Array]
State: TypeAlias = tuple[list[Array], list[Array]]  # parameters, momenta


def gradients(theta: Sequence[Array], batch: Batch) -> list[Array]:
    """By A, b and c of the loss, by hand."""
    a, b, c = theta
    x, y = batch
    hidden = np.tanh(x @ a)
    error = (hidden @ b + c - y) / len(y)
    return [x.T @ (np.outer(error, b) * (1 - hidden**2)), hidden.T @ error, np.array([error.sum()])]


def algorithm_1(
    theta: Sequence[Array], batches: Sequence[Batch], h: float, k: int, mu: float, omega: float = 0.0
) -> Iterator[State]:
    """Algorithm 1, and with omega Algorithm A1: A is slow; b and c are fast. h is the paper's: k times the lr."""
    theta = [value.copy() for value in theta]
    p = [np.zeros_like(value) for value in theta]
    batch = iter(batches)
    for _ in range(len(batches) // k):
        now = next(batch)
        p[0] = mu * p[0] + gradients(theta, now)[0] + omega * theta[0]
        for i in range(k):
            now = next(batch) if i > 0 else now
            g = gradients(theta, now)
            for fast in (1, 2):
                p[fast] = mu * p[fast] + g[fast] + omega * theta[fast]
            for part in (0, 1, 2):
                theta[part] = theta[part] - h / k * p[part]
            yield [value.copy() for value in theta], [value.copy() for value in p]


def algorithm_2(
    theta: Sequence[Array], batches: Sequence[Batch], h: float, k: int, mu: float, *, gradients_first: bool
) -> Iterator[State]:
    """Algorithm 2. The paper moves the slow parameters before the first fast gradient; `gradients_first` does not."""
    theta = [value.copy() for value in theta]
    p = [np.zeros_like(value) for value in theta]
    batch = iter(batches)
    for _ in range(len(batches) // k):
        now = next(batch)
        g = gradients(theta, now)
        p[0] = mu * p[0] + g[0]
        theta[0] = theta[0] - h * p[0]
        for i in range(k):
            now = next(batch) if i > 0 else now
            if i > 0 or not gradients_first:
                g = gradients(theta, now)
            for fast in (1, 2):
                p[fast] = mu * p[fast] + g[fast]
                theta[fast] = theta[fast] - h / k * p[fast]
            yield [value.copy() for value in theta], [value.copy() for value in p]


def scales(
    theta: Sequence[Array], batches: Sequence[Batch], h: float, ratios: tuple[int, int], mu: float
) -> Iterator[State]:
    """Three scales, A slowest and c fastest: each level divides the steps of the one above. h is that of A."""
    theta = [value.copy() for value in theta]
    p = [np.zeros_like(value) for value in theta]
    batch = iter(batches)
    step = h / (ratios[0] * ratios[1])
    now = batches[0]

    def level(i: int) -> Iterator[State]:
        p[i] = mu * p[i] + gradients(theta, now)[i]
        if i < 2:
            for turn in range(ratios[i]):
                if turn > 0:
                    draw()
                yield from level(i + 1)
            return
        for part in range(3):
            theta[part] = theta[part] - step * p[part]
        yield [value.copy() for value in theta], [value.copy() for value in p]

    def draw() -> None:
        nonlocal now
        now = next(batch)

    for _ in range(len(batches) // (ratios[0] * ratios[1])):
        draw()
        yield from level(0)


def held_adamw(
    theta: Sequence[Array],
    batches: Sequence[Batch],
    lr: float,
    k: int,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> Iterator[State]:
    """AdamW whose direction, decay included, is held between the gradients of the slow A; yields the first moments."""
    theta = [value.copy() for value in theta]
    m, v = [np.zeros_like(value) for value in theta], [np.zeros_like(value) for value in theta]
    count, direction = [0, 0, 0], [np.zeros_like(value) for value in theta]
    for t, now in enumerate(batches):
        g = gradients(theta, now)
        for part in (0, 1, 2) if t % k == 0 else (1, 2):
            count[part] += 1
            m[part] = betas[0] * m[part] + (1 - betas[0]) * g[part]
            v[part] = betas[1] * v[part] + (1 - betas[1]) * g[part] ** 2
            m_hat = m[part] / (1 - betas[0] ** count[part])
            v_hat = v[part] / (1 - betas[1] ** count[part])
            direction[part] = m_hat / (np.sqrt(v_hat) + eps) + weight_decay * theta[part]
        theta = [value - lr * d for value, d in zip(theta, direction, strict=True)]
        yield [value.copy() for value in theta], [value.copy() for value in m]


def gathered(
    theta: Sequence[Array], batches: Sequence[Batch], lr: float, k: int, *, mean: bool, drift: bool
) -> Iterator[State]:
    """Update frequencies: A moves by the mean or sum of the gradients since its last update, without momentum."""
    theta = [value.copy() for value in theta]
    seen: list[Array] = []
    direction = np.zeros_like(theta[0])
    for t, now in enumerate(batches):
        g = gradients(theta, now)
        seen.append(g[0])
        if t % k == 0:
            direction = sum(seen[1:], seen[0]) / (len(seen) if mean else 1)
            seen = []
        if drift or t % k == 0:
            theta[0] = theta[0] - lr * (1 if drift else k) * direction
        theta[1:] = [value - lr * d for value, d in zip(theta[1:], g[1:], strict=True)]
        yield [value.copy() for value in theta], [direction.copy(), *g[1:]]
