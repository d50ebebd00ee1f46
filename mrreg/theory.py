"""Bounds for multirate training: how much time it saves, and how far SGD with slow parts gets.

Theorem 3.3 of the paper (`convergence_bound`) holds for full-batch gradients. **It is false for mini-batches**: a slow
part's gradient was computed on an earlier batch that theta depends on by now. Use `minibatch_convergence_bound`. Proof
and counterexample are in docs/theory.md.

All functions raise TypeError for what is no number, or no whole one, and ValueError for what is out of range.
"""

import math
from collections.abc import Iterable

from mrreg.errors import check, check_int, check_number


def expected_speedup(layers: float, fast_layers: float, k: int) -> float:
    """Estimate how many times faster k steps get if only the last layers are fast.

    Every layer costs 1 forward and 1 backward; the forward pass is never saved, so the limit is 2:

        2 k L / ((k + 1) L + (k - 1) l)

    Args:
        layers: Number of layers, above 0. Paper: L.
        fast_layers: Number of fast layers, counted from the loss; between 0 and `layers`. Paper: l.
        k: Steps per gradient of the slow layers, at least 1. Paper: k.

    Example:
        >>> from mrreg import theory
        >>> round(theory.expected_speedup(34, 1, k=5), 2)
        1.63

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 4.
    """
    where = "expected_speedup"
    total = _positive(where, "layers", layers)
    fast = check_number(where, "fast_layers", fast_layers, "between 0 and layers", lambda x: 0 <= x <= total)
    return expected_speedup_from_costs(total, total, fast, check_int(where, "k", k))


def expected_speedup_from_costs(forward: float, backward: float, fast_backward: float, k: int) -> float:
    """Estimate how many times faster k steps get, from measured costs of one step in any unit.

        k (forward + backward) / (k forward + backward + (k - 1) fast_backward)

    Add the optimizer's own step and the loading of data to `forward`.

    Args:
        forward: Cost of a forward pass, at least 0.
        backward: Cost of a backward pass through everything, above 0.
        fast_backward: Cost of a backward pass with the slow parameters off; between 0 and `backward`.
        k: Steps per gradient of the slow part, at least 1. Paper: k.

    Example:
        >>> from mrreg import theory
        >>> round(theory.expected_speedup_from_costs(forward=1.71, backward=3.96, fast_backward=0.02, k=5), 2)
        2.25
    """
    where = "expected_speedup_from_costs"
    ahead, back = _not_negative(where, "forward", forward), _positive(where, "backward", backward)
    fast = check_number(where, "fast_backward", fast_backward, "between 0 and backward", lambda x: 0 <= x <= back)
    k = check_int(where, "k", k)
    return k * (ahead + back) / (k * ahead + back + (k - 1) * fast)


def convergence_bound(
    *, gap: float, lr: float, steps: int, smoothness: float, moment: float, k: int, groups: int = 2
) -> float:
    """Compute the bound of Theorem 3.3 on the mean over all steps of |grad f|^2. For full-batch gradients only.

        2 gap / (lr T) + lr L M l (lr L k^2 / 3 + 1)

    Args:
        gap: f at the start minus its infimum, or more. Paper: f(theta_0) - f(theta*).
        lr: Step size per step, above 0. Paper: h.
        steps: Number of steps, at least 1. Paper: T.
        smoothness: Lipschitz constant of grad f. Paper: L.
        moment: Bound on |grad f|^2. Paper: M.
        k: Steps per gradient of the slow part, at least 1. Paper: k.
        groups: Number of parts. Paper: l.

    Example:
        >>> from mrreg import theory
        >>> setting = dict(gap=1.0, lr=0.01, steps=10_000, smoothness=3.0, moment=1.0)
        >>> round(theory.convergence_bound(**setting, k=10), 3)
        0.14

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, theorem 3.3.
    """
    where = "convergence_bound"
    start, drift = _common(where, gap=gap, lr=lr, steps=steps, smoothness=smoothness, moment=moment)
    period, parts = check_int(where, "k", k), check_int(where, "groups", groups)
    return float(2 * start + drift * parts * (lr * smoothness * period**2 / 3 + 1))


def minibatch_convergence_bound(
    *, gap: float, lr: float, steps: int, smoothness: float, moment: float, periods: Iterable[int]
) -> float:
    """Compute a bound on the mean over all steps of E|grad f|^2 that holds for mini-batches and any number of scales.

    With l parts of periods K_1, ..., K_l:

        gap / (lr T) + lr L M / 2 * sum_i [1 + sqrt(l) (K_i - 1) + lr L l (K_i - 1) (2 K_i - 1) / 3]

    For one part of period 1 it is the classical bound of SGD. It holds for every step size and independent batches
    whose gradients have mean grad f. Proved in docs/theory.md.

    Args: those of `convergence_bound`, where `moment` bounds the squared norm of the gradient of every example; and
    `periods`, that of every part, such as (1, k); equal ones count once.

    Example:
        >>> from mrreg import theory
        >>> setting = dict(gap=1.0, lr=0.01, steps=10_000, smoothness=3.0, moment=1.0)
        >>> round(theory.minibatch_convergence_bound(**setting, periods=(1, 5)), 3)
        0.136
    """
    where = "minibatch_convergence_bound"
    start, drift = _common(where, gap=gap, lr=lr, steps=steps, smoothness=smoothness, moment=moment)
    rule = "an iterable of whole numbers, such as (1, k)"
    check(isinstance(periods, Iterable), where, "periods", rule, periods, kind=TypeError)
    scales = sorted({check_int(where, "periods", period) for period in periods})
    check(scales, where, "periods", "at least one", ())
    root, step = math.sqrt(len(scales)), lr * smoothness * len(scales) / 3
    held = sum(1 + root * (period - 1) + step * (period - 1) * (2 * period - 1) for period in scales)
    return float(start + drift / 2 * held)


def _common(where: str, *, steps: int, **sizes: float) -> tuple[float, float]:
    """Check the arguments of both bounds, and return gap / (h T) and h L M."""
    lr = _positive(where, "lr", sizes.pop("lr"))
    gap, smoothness, moment = (_not_negative(where, name, size) for name, size in sizes.items())
    return gap / (lr * check_int(where, "steps", steps)), lr * smoothness * moment


def _positive(where: str, argument: str, value: float) -> float:
    return check_number(where, argument, value, "finite and above 0", lambda x: 0 < x < math.inf)


def _not_negative(where: str, argument: str, value: float) -> float:
    return check_number(where, argument, value, "finite and at least 0", lambda x: 0 <= x < math.inf)
