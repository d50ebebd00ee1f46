"""Checks of arguments, and the wording of every error and warning.

Messages follow one template, so that a reader always finds what was wrong, with which value, and what to do:

    {where}: {argument} must be {rule}, got {value!r}. {remedy}
"""

import contextlib
import difflib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import TypeVar

import torch

E = TypeVar("E", bound=Exception)
T = TypeVar("T")

SHOWN = 5  # names listed in a message before the rest is only counted
NOT_OF_THE_USER = (*(str(Path(each).parent) + os.sep for each in (torch.__file__, __file__)), contextlib.__file__)


class NoEffectWarning(UserWarning):
    """A call changed nothing, or cannot have the effect it was made for.

    Example:
        >>> import warnings, mrreg
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", mrreg.NoEffectWarning)
    """


def warn(message: str, category: type[Warning] = NoEffectWarning) -> None:
    """Warn at the line of the user: the innermost one that is neither in torch nor in mrreg."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(NOT_OF_THE_USER):
        frame = frame.f_back
    names, registry = frame.f_globals, frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, category, frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "<string>"), registry
    )


def check(
    condition: object,
    where: str,
    argument: str,
    rule: str,
    value: object,
    remedy: str = "",
    kind: type[Exception] = ValueError,
) -> None:
    """Raise the error that `invalid_argument` builds, unless the condition holds."""
    if not condition:
        raise invalid_argument(kind, where, argument, rule, value, remedy)


def check_type(where: str, argument: str, value: object, cls: type[T], rule: str, remedy: str = "") -> T:
    """Return an instance of a class; a class in the place of its instance, or a tuple around it, is said to be one."""
    if isinstance(value, cls):
        return value
    if isinstance(value, tuple) and any(isinstance(each, cls) for each in value):
        remedy = f"It is in a tuple: unpack it, as in `model, report = mrreg.thin(...)`. {remedy}".rstrip()
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    if isinstance(value, type) and issubclass(value, cls):
        remedy = f"{name} is a class: give an instance, {name}(...). {remedy}".rstrip()
    raise invalid_argument(TypeError, where, argument, rule, name, remedy)


def check_number(where: str, argument: str, value: object, rule: str, valid: Callable[[float], bool]) -> float:
    """Return the value as a float; a bool is not a number, and NaN passes no comparison that `valid` makes."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid_argument(TypeError, where, argument, f"a number, {rule}", value)
    if not valid(float(value)):
        raise invalid_argument(ValueError, where, argument, rule, value)
    return float(value)


def check_share(where: str, argument: str, value: object) -> float:
    """Return the value as a float in [0, 1]."""
    return check_number(where, argument, value, "in [0, 1]", lambda share: 0 <= share <= 1)


def check_int(where: str, argument: str, value: object, least: int = 1) -> int:
    """Return the value as an int of at least `least`."""
    rule = f"a whole number, at least {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise invalid_argument(TypeError, where, argument, rule, value)
    if value < least:
        raise invalid_argument(ValueError, where, argument, rule, value)
    return int(value)


def invalid_argument(kind: type[E], where: str, argument: str, rule: str, value: object, remedy: str = "") -> E:
    """Build (not raise) the exception that names where, which argument, the rule, the value and the remedy."""
    message = f"{where}: {argument} must be {rule}, got {value!r}."
    return kind(f"{message} {remedy}".rstrip())


def invalid_state(where: str, problem: str, remedy: str) -> RuntimeError:
    """Build the exception for a call that is right in itself but comes at the wrong moment."""
    return RuntimeError(f"{where}: {problem}. {remedy}")


def quoted(names: Iterable[str]) -> str:
    """Return at most five names, sorted, and how many more there are: 'a', 'b' and 3 more."""
    ordered = sorted(names)
    shown = ", ".join(repr(name) for name in ordered[:SHOWN])
    rest = len(ordered) - SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown or "none"


def unknown_name(where: str, argument: str, rule: str, name: str, existing: Iterable[str]) -> ValueError:
    """Build the exception for a name that matches nothing: the nearest names first, else what exists."""
    names = list(existing)
    near = difflib.get_close_matches(name, names, n=SHOWN, cutoff=0.6)
    hint = f"Did you mean {quoted(near)}?" if near else f"There is: {quoted(names)}."
    return invalid_argument(ValueError, where, argument, rule, name, hint)


def add_note(error: Exception, note: str) -> None:
    """Add a sentence to an error of somebody else's code: as a note, or before Python 3.11 to its text."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.args = (f"{error}\n{note}", *error.args[1:])
