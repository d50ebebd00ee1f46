"""Checks of the options of an optimizer or a group; torch checks few of the former and none of the latter."""

from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

from torch import Tensor

from mrreg.errors import check_number, invalid_argument


def check_rate(where: str, name: str, value: object, below: float = inf) -> Any:
    """Return a float, or a tensor with one; torch's own checks let NaN, infinity and True pass."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise invalid_argument(ValueError, where, name, "a number or a tensor with one", value)
    plain = value.item() if isinstance(value, Tensor) else value
    rule = "finite and at least 0" if below == inf else f"in [0, {below})"
    checked = check_number(where, name, plain, rule, lambda x: 0 <= x < below)
    return value if isinstance(value, Tensor) else checked


def _betas(where: str, name: str, value: object) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise invalid_argument(TypeError, where, name, "a pair of numbers", value)
    return check_rate(where, f"{name}[0]", value[0], below=1), check_rate(where, f"{name}[1]", value[1], below=1)


def _finite(where: str, name: str, value: object) -> float:
    return check_number(where, name, value, "finite", isfinite)


def _flag(where: str, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid_argument(TypeError, where, name, "True or False", value)
    return value


def _choice(where: str, name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise invalid_argument(TypeError, where, name, "True, False or None", value)
    return value


CHECKS: Mapping[str, Callable[[str, str, object], Any]] = {
    **dict.fromkeys(("lr", "momentum", "temperature", "weight_decay", "eps"), check_rate),
    **dict.fromkeys(("nesterov", "maximize", "amsgrad", "capturable"), _flag),
    **dict.fromkeys(("foreach", "fused"), _choice),
    "dampening": _finite,
    "betas": _betas,
}


def checked(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with their numbers as Python's own."""
    return {name: CHECKS[name](where, name, value) if name in CHECKS else value for name, value in options.items()}
