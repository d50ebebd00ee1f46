"""Section 5.1 with masks, read literally: loops over steps in NumPy float64, for a two-layer network.

h_F drives the fast weights on every step, h_S the slow ones on the last step of a cycle. On the other steps slow
weights are zero in the network, and neither they nor their momentum change.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]


def gradients(weights: list[Array], x: Array, y: Array) -> list[Array]:
    """d/dW of the mean over the batch of |W2 tanh(W1 x + b1) + b2 - y|^2 / 2, for [W1, b1, W2, b2]."""
    w1, b1, w2, b2 = weights
    hidden = np.tanh(x @ w1.T + b1)
    error = (hidden @ w2.T + b2 - y) / len(x)
    back = error @ w2 * (1 - hidden**2)
    return [back.T @ x, back.sum(0), error.T @ hidden, error.sum(0)]


class MaskedSGD:
    """SGD with momentum and weight decay: p <- mu p + grad + omega theta; theta <- theta - h p."""

    def __init__(self, weights: list[Array], h: float, momentum: float, decay: float) -> None:
        self.weights = [w.copy() for w in weights]
        self.p = [np.zeros_like(w) for w in weights]
        self.h, self.momentum, self.decay = h, momentum, decay

    def move(self, i: int, grad: Array, moving: Bits | bool, h: Array | float) -> None:
        grad = grad + self.decay * self.weights[i]
        self.p[i] = np.where(moving, self.momentum * self.p[i] + grad, self.p[i])
        self.weights[i] = np.where(moving, self.weights[i] - h * self.p[i], self.weights[i])

    def tick(self) -> None:
        """SGD counts no steps."""


class MaskedAdamW:
    """AdamW; the step count of the bias correction advances on every step, moments of held entries do not."""

    def __init__(self, weights: list[Array], h: float, decay: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.weights = [w.copy() for w in weights]
        self.m = [np.zeros_like(w) for w in weights]
        self.v = [np.zeros_like(w) for w in weights]
        self.h, self.decay, self.betas, self.t = h, decay, betas, 0

    def tick(self) -> None:
        self.t += 1

    def move(self, i: int, grad: Array, moving: Bits | bool, h: Array | float) -> None:
        b1, b2 = self.betas
        m, v = b1 * self.m[i] + (1 - b1) * grad, b2 * self.v[i] + (1 - b2) * grad**2
        self.m[i], self.v[i] = np.where(moving, m, self.m[i]), np.where(moving, v, self.v[i])
        update = m / (1 - b1**self.t) / (np.sqrt(v / (1 - b2**self.t)) + 1e-8) + self.decay * self.weights[i]
        self.weights[i] = np.where(moving, self.weights[i] - h * update, self.weights[i])


Rule = MaskedSGD | MaskedAdamW


def masked_training(
    rule: Rule,
    batches: list[tuple[Array, Array]],
    slow: Callable[[int, int], Bits | None],
    k: int,
    boost: float,
    after: Callable[[int], None],
) -> None:
    """`slow(i, cycle)` is the slow subset of parameter i (None: unmasked); `after(t)` looks at the state of step t."""
    for t, (x, y) in enumerate(batches):
        cycle, phase = divmod(t, k)
        joint = phase == k - 1
        subsets = [slow(i, cycle) for i in range(len(rule.weights))]
        seen = [w if s is None or joint else np.where(s, 0, w) for w, s in zip(rule.weights, subsets, strict=True)]
        rule.tick()
        for i, grad in enumerate(gradients(seen, x, y)):
            s = subsets[i]
            if s is None:
                rule.move(i, grad, True, rule.h)
            elif joint:
                rule.move(i, grad, True, np.where(s, boost * rule.h, rule.h))
            else:
                rule.move(i, np.where(s, 0, grad), ~s, rule.h)
        after(t)
