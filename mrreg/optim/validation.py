"""Checks of what a `Multirate` is made of: base optimizers, periods and kinds of gradient."""

import inspect
from collections.abc import Iterable, Mapping
from itertools import pairwise

import torch
from torch import Tensor
from torch.optim import Optimizer

from mrreg.distributed.checks import check_engine
from mrreg.errors import check_int, invalid_argument, invalid_state
from mrreg.optim.drift import Group
from mrreg.optim.sync_clock import INITIAL_CLOCK

GRADIENTS = ("sync", "mean", "sum")

REFUSED_BASES = {
    "LBFGS": "LBFGS evaluates the loss several times per step and its update mixes all parameters",
    "Muon": "Muon's update is not element-wise",
    "Adafactor": "Adafactor scales its update by norms of whole tensors",
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
    """Refuse what cannot be a base."""
    if not isinstance(base, Optimizer):
        raise invalid_argument(
            TypeError, where, argument, "a pair of a torch.optim.Optimizer and a period", type(base).__name__
        )
    check_engine(where, argument, base)
    rule, name = "an element-wise optimizer", type(base).__name__
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
    words = [gradient] * count if isinstance(gradient, str) or not isinstance(gradient, Iterable) else list(gradient)
    if len(words) != count:
        raise invalid_argument(
            ValueError, where, "gradient", f"one word, or one for each of the {count} parts", gradient
        )
    for word in words:
        if word not in GRADIENTS:
            kind = ValueError if isinstance(word, str) else TypeError
            raise invalid_argument(kind, where, "gradient", f"one of {GRADIENTS}", word)
    return [str(word) for word in words]


def initial_groups(
    where: str, pairs: list[tuple[Optimizer, int | None]], gradients: list[str], drift: bool
) -> list[tuple[Group, Group]]:
    """Pair every group with the entries that make it a part: its period, its clock and its sync steps."""
    entries = []
    for i, ((base, period), gradient) in enumerate(zip(pairs, gradients, strict=True)):
        for group in base.param_groups:
            own = group.get("period")
            if own is not None and period is not None and own != period:
                remedy = "Give None as the pair's period to use those of the groups."
                raise invalid_argument(
                    ValueError, where, f"parts[{i}] period", f"{own}, as its groups say", period, remedy
                )
            k = period if own is None else own
            k = check_int(where, f"parts[{i}] period", 1 if k is None and "period" not in group else k)
            own_entries = {"period": k, "initial_period": k, "gradient": gradient, "drift": drift}
            entries.append((group, own_entries | INITIAL_CLOCK))
    check_periods(where, [added for _, added in entries])
    return entries
