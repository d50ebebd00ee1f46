"""Checks of numbers that users pass: kind first, then range; numpy's numbers become Python's."""

from collections.abc import Callable
from numbers import Integral, Real

from mrreg.errors import bad


def number(where: str, argument: str, value: object, rule: str, valid: Callable[[float], bool]) -> float:
    """Return the value as a float; a bool is no number, and NaN passes no comparison that `valid` makes."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise bad(TypeError, where, argument, f"a number, {rule}", value)
    if not valid(float(value)):
        raise bad(ValueError, where, argument, rule, value)
    return float(value)


def whole(where: str, argument: str, value: object, least: int = 1) -> int:
    """Return the value as an int of at least `least`."""
    rule = f"a whole number, at least {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise bad(TypeError, where, argument, rule, value)
    if value < least:
        raise bad(ValueError, where, argument, rule, value)
    return int(value)
