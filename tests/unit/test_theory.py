"""`mrreg.theory`: known values, limits, and what is refused."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mrreg import theory

SETTING: dict[str, Any] = {"gap": 1.0, "lr": 0.01, "steps": 1000, "smoothness": 3.0, "moment": 2.0}


@pytest.mark.parametrize(
    ("layers", "fast_layers", "k", "expected"),
    [
        (34, 1, 5, 2 * 5 * 34 / (6 * 34 + 4)),
        (10, 10, 7, 1.0),
        (10, 2, 1, 1.0),
        (10, 0, 3, 6 / 4),
        (np.int64(34), np.float32(1), np.int32(5), 340 / 208),
    ],
)
def test_speedup_by_layers(layers: float, fast_layers: float, k: int, expected: float) -> None:
    assert theory.expected_speedup(layers, fast_layers, k) == pytest.approx(expected, rel=1e-14)


def test_speedup_tends_to_two_and_never_gets_there() -> None:
    values = [theory.expected_speedup(1000, 1, k) for k in (2, 5, 25, 10**6)]
    assert values == sorted(values)
    assert 1.99 < values[-1] < 2


@pytest.mark.parametrize(
    ("forward", "backward", "fast_backward", "k", "expected"),
    [(1, 2, 2, 5, 1.0), (1, 2, 0, 1, 1.0), (0, 1, 0, 4, 4.0), (1, 3, 1, 3, 12 / 8), (34, 34, 1, 5, 340 / 208)],
)
def test_speedup_by_costs(forward: float, backward: float, fast_backward: float, k: int, expected: float) -> None:
    assert theory.expected_speedup_from_costs(forward, backward, fast_backward, k) == pytest.approx(expected)


def test_theorem_3_3_by_hand() -> None:
    assert theory.convergence_bound(**SETTING, k=10) == pytest.approx(0.2 + 0.06 * 2 * (0.03 * 100 / 3 + 1))
    assert theory.convergence_bound(**SETTING, k=1, groups=3) == pytest.approx(0.2 + 0.06 * 3 * 1.01)


def test_minibatch_bound_by_hand() -> None:
    two = 0.1 + 0.03 * (1 + (1 + math.sqrt(2) * 4 + 0.03 * 2 * 4 * 9 / 3))
    assert theory.minibatch_convergence_bound(**SETTING, periods=(1, 5)) == pytest.approx(two)
    assert theory.minibatch_convergence_bound(**SETTING, periods=iter([5, 1, 5, 1])) == pytest.approx(two)
    assert theory.minibatch_convergence_bound(**SETTING, periods=[1]) == pytest.approx(0.1 + 0.03)


ARGUMENTS: dict[Callable[..., float], dict[str, Any]] = {
    theory.expected_speedup: {"layers": 10, "fast_layers": 1, "k": 5},
    theory.expected_speedup_from_costs: {"forward": 1, "backward": 2, "fast_backward": 0, "k": 5},
    theory.convergence_bound: {**SETTING, "k": 5},
    theory.minibatch_convergence_bound: {**SETTING, "periods": (1, 5)},
}
REFUSED: list[tuple[type[Exception], str, Callable[..., float], dict[str, Any]]] = [
    (ValueError, "layers must be finite and above 0, got nan.", theory.expected_speedup, {"layers": math.nan}),
    (TypeError, "layers must be a number, finite and above 0, got None.", theory.expected_speedup, {"layers": None}),
    (ValueError, "fast_layers must be between 0 and layers, got 11.", theory.expected_speedup, {"fast_layers": 11}),
    (TypeError, "k must be a whole number, at least 1, got 2.5.", theory.expected_speedup, {"k": 2.5}),
    (ValueError, "forward must be finite and at least 0", theory.expected_speedup_from_costs, {"forward": -1}),
    (ValueError, "fast_backward must be betw", theory.expected_speedup_from_costs, {"fast_backward": 3}),
    (ValueError, "gap must be finite and at least 0, got inf.", theory.convergence_bound, {"gap": math.inf}),
    (ValueError, "lr must be finite and above 0, got 0.", theory.convergence_bound, {"lr": 0}),
    (TypeError, "groups must be a whole number, at least 1, got True.", theory.convergence_bound, {"groups": True}),
    (TypeError, "periods must be an iterable of whole", theory.minibatch_convergence_bound, {"periods": 5}),
    (ValueError, "periods must be at least one, got ().", theory.minibatch_convergence_bound, {"periods": []}),
]


@pytest.mark.parametrize(("kind", "message", "function", "other"), REFUSED)
def test_refused_numbers(
    kind: type[Exception], message: str, function: Callable[..., float], other: dict[str, Any]
) -> None:
    assert function(**ARGUMENTS[function]) > 0
    with pytest.raises(kind, match=re.escape(f"{function.__name__}: {message}")):
        function(**ARGUMENTS[function] | other)
