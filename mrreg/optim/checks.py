"""Checks of the arguments of a `Multirate`: base optimizers, periods and kinds of gradient."""

import inspect
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mrreg.distributed.checks import check_engine
from mrreg.errors import check_int, invalid_argument, invalid_state
from mrreg.optim.clock import Group, initial_clock

GRADIENTS = ("sync", "mean", "sum")
SLOW_LR = ("coupled", "per_gradient")

REFUSED_BASES = {
    "LBFGS": "LBFGS evaluates the loss several times per step and its update mixes all parameters",
    "SparseAdam": "SparseAdam moves only the rows that have a gradient, so that nothing could drift",
}


def check_parts(where: str, parts: object) -> list[tuple[Optimizer, int | None]]:
    """Return the pairs of base and period, each of the right kind and no parameter in two of them."""
    rule = "a list of pairs (optimizer, period)"
    if not isinstance(parts, Iterable) or isinstance(parts, Mapping | str):
        raise invalid_argument(TypeError, where, "parts", rule, parts)
    pairs = list(parts)
    if not pairs:
        raise invalid_argument(ValueError, where, "parts", "a list of at least one pair (optimizer, period)", pairs)
    for i, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise invalid_argument(TypeError, where, f"parts[{i}]", "a pair (optimizer, period)", type(pair).__name__)
        _check_base(where, f"parts[{i}]", pair[0])
    _check_overlap(where, [base for base, _ in pairs])
    return [
        (base, None if k is None else check_int(where, f"parts[{i}] period", k)) for i, (base, k) in enumerate(pairs)
    ]


def _check_base(where: str, argument: str, base: object) -> None:
    """Refuse an object that cannot be a base."""
    if not isinstance(base, Optimizer):
        raise invalid_argument(
            TypeError, where, argument, "a pair of a torch.optim.Optimizer and a period", type(base).__name__
        )
    check_engine(where, argument, base)
    rule, name = "an optimizer that steps once per gradient", type(base).__name__
    for refused, reason in REFUSED_BASES.items():
        if isinstance(base, getattr(torch.optim, refused, ())):
            raise invalid_argument(ValueError, where, argument, rule, name, f"{reason}.")
    if hasattr(base, "due"):
        raise invalid_argument(
            ValueError, where, argument, rule, name, "Give all parts to one Multirate instead of nesting them."
        )
    if any(isinstance(value, Optimizer) for value in vars(base).values()):
        raise invalid_argument(ValueError, where, argument, rule, name, "It wraps another optimizer: give that one.")
    parameters = list(inspect.signature(type(base).step).parameters.values())[1:]
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if required:
        reason = f"Its step needs {required[0]!r}, and one backward pass serves all parts."
        raise invalid_argument(ValueError, where, argument, "an optimizer whose step needs no argument", name, reason)
    _check_groups(where, argument, base)


def _check_groups(where: str, argument: str, base: Optimizer) -> None:
    """Refuse groups that cannot be held over several steps."""
    name = type(base).__name__
    for group in base.param_groups:
        if "lr" not in group:
            raise invalid_argument(ValueError, where, argument, "an optimizer with lr in its groups", name)
        if any(map(torch.nn.parameter.is_lazy, group["params"])):
            raise invalid_state(where, f"{argument} has parameters without a shape yet", "Run one forward first.")
        if group.get("differentiable"):
            remedy = "Autograd cannot follow directions that are held over several steps."
            raise invalid_argument(ValueError, where, argument, "an optimizer with differentiable=False", name, remedy)


def _check_overlap(where: str, bases: list[Optimizer]) -> None:
    """Refuse a parameter in two groups, or twice in one."""
    seen: dict[Tensor, int] = {}
    for i, base in enumerate(bases):
        for p in (p for group in base.param_groups for p in group["params"]):
            if p in seen:
                owners = f"a tensor of shape {tuple(p.shape)} in parts {seen[p]} and {i}"
                raise invalid_argument(
                    ValueError, where, "parts", "disjoint", owners, "Give every parameter to one part."
                )
            seen[p] = i


def check_periods(where: str, groups: list[Group]) -> None:
    """Refuse periods unless they are whole numbers, the fastest is 1, and each divides the next slower one."""
    periods = sorted({check_int(where, f"param_groups[{i}]['period']", g["period"]) for i, g in enumerate(groups)})
    if periods[0] != 1:
        remedy = "Something must move at every step: give one part period 1."
        raise invalid_argument(ValueError, where, "period", "1 for the fastest part", periods, remedy)
    for finer, coarser in pairwise(periods):
        if coarser % finer:
            remedy = f"{finer} does not divide {coarser}."
            raise invalid_argument(ValueError, where, "period", "a divisor of the next slower part's", periods, remedy)


def check_gradients(where: str, gradient: object, count: int) -> list[str]:
    """Return one kind of gradient per part."""
    words = _one_per_part(where, "gradient", "word", gradient, count)
    for word in words:
        if word not in GRADIENTS:
            kind = ValueError if isinstance(word, str) else TypeError
            raise invalid_argument(kind, where, "gradient", f"one of {GRADIENTS}", word)
    return [str(word) for word in words]


def check_phases(where: str, phase: object, count: int) -> list[int]:
    """Return one phase per part."""
    return [check_int(where, "phase", each, 0) for each in _one_per_part(where, "phase", "number", phase, count)]


def _one_per_part(where: str, argument: str, kind: str, value: object, count: int) -> list[Any]:
    """Return a list with an entry for each part, of one value or of as many as there are parts."""
    values = [value] * count if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if len(values) != count:
        raise invalid_argument(ValueError, where, argument, f"one {kind}, or one for each of the {count} parts", value)
    return values


def initial_groups(
    where: str,
    pairs: list[tuple[Optimizer, int | None]],
    gradients: list[str],
    phases: list[int],
    drift: bool,
) -> list[tuple[Group, Group]]:
    """Pair every group with the entries that make it a part: its period, its clock and its sync steps."""
    entries = []
    for i, ((base, period), gradient, phase) in enumerate(zip(pairs, gradients, phases, strict=True)):
        for group in base.param_groups:
            own = group.get("period")
            if own is not None and period is not None and own != period:
                remedy = "Give None as the pair's period to use those of the groups."
                raise invalid_argument(
                    ValueError, where, f"parts[{i}] period", f"{own}, as its groups say", period, remedy
                )
            k = period if own is None else own
            k = check_int(where, f"parts[{i}] period", 1 if k is None and "period" not in group else k)
            slow_lr = group.get("slow_lr", "coupled")
            if slow_lr not in SLOW_LR:
                raise invalid_argument(ValueError, where, f"parts[{i}] slow_lr", f"one of {SLOW_LR}", slow_lr)
            first = check_int(where, f"parts[{i}] phase", group.get("phase", phase), 0) % k
            added = {"period": k, "initial_period": k, "phase": first, "gradient": gradient, "drift": drift}
            entries.append((group, added | {"slow_lr": slow_lr} | initial_clock(first)))
    check_periods(where, [added for _, added in entries])
    return entries
