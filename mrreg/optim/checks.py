"""Checks of the arguments of a `Multirate`: base optimizers, periods and kinds of gradient."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mrreg.distributed.checks import check_engine
from mrreg.errors import check, check_int, check_type, invalid_argument
from mrreg.optim.clock import INITIAL_CLOCK, Group

GRADIENTS = ("sync", "mean", "sum")
SLOW_LR = ("coupled", "per_gradient")

REFUSED_BASES = {
    "LBFGS": "LBFGS evaluates the loss several times per step and its update mixes all parameters.",
    "Multirate": "Give all parts to one Multirate instead of nesting them.",
}

Pairs = list[tuple[Optimizer, int | None]]


def check_parts(where: str, parts: object) -> Pairs:
    """Return the pairs of base and period, each of the right kind and no parameter in two of them."""
    if not isinstance(parts, Iterable) or isinstance(parts, Mapping | str):
        raise invalid_argument(TypeError, where, "parts", "a list of pairs (optimizer, period)", parts)
    pairs: Pairs = list(parts)
    owners: dict[Tensor, int] = {}
    check(pairs, where, "parts", "a list of at least one pair (optimizer, period)", pairs)
    for i, pair in enumerate(pairs):
        argument, is_pair = f"parts[{i}]", isinstance(pair, tuple | list) and len(pair) == 2
        check(is_pair, where, argument, "a pair (optimizer, period)", type(pair).__name__, kind=TypeError)
        base = check_type(where, argument, pair[0], Optimizer, "a pair of a torch.optim.Optimizer and a period")
        check_engine(where, argument, base)
        name, rule = type(base).__name__, "an optimizer that steps once per gradient"
        for kind in type(base).__mro__:
            check(kind.__name__ not in REFUSED_BASES, where, argument, rule, name, REFUSED_BASES.get(kind.__name__, ""))
        wraps = any(isinstance(value, Optimizer) for value in vars(base).values())
        check(not wraps, where, argument, rule, name, "It wraps another optimizer: give that one.")
        has_lr = all(group.get("lr") is not None for group in base.param_groups)
        check(has_lr, where, argument, "an optimizer with a number as lr in its groups", name, "Give it an lr.")
        for p in (p for group in base.param_groups for p in group["params"]):
            found = f"a tensor of shape {tuple(p.shape)} in parts {owners.get(p)} and {i}"
            check(p not in owners, where, "parts", "disjoint", found, "Give every parameter to one part.")
            owners[p] = i
    return pairs


def check_periods(where: str, groups: list[Group]) -> None:
    """Refuse periods unless they are whole numbers, the fastest is 1, and each divides the next slower one."""
    for i, group in enumerate(groups):  # NumPy's numbers could not be loaded with weights_only=True
        group["period"] = check_int(where, f"param_groups[{i}]['period']", group["period"])
    periods = sorted({group["period"] for group in groups})
    remedy = "Something must move at every step: give one part period 1."
    check(periods[0] == 1, where, "period", "1 for the fastest part", periods, remedy)
    for finer, coarser in pairwise(periods):
        rule, remedy = "a divisor of the next slower part's", f"{finer} does not divide {coarser}."
        check(coarser % finer == 0, where, "period", rule, periods, remedy)


def initial_groups(
    where: str, pairs: Pairs, gradient: object, phase: object, drift: object
) -> list[tuple[Group, Group]]:
    """Pair every group with the entries that make it a part: its period, its clock and its sync steps."""
    check(isinstance(drift, bool), where, "drift", "True or False", drift, kind=TypeError)
    words = _one_per_part(where, "gradient", "word", gradient, len(pairs))
    phases = _one_per_part(where, "phase", "number", phase, len(pairs))
    entries = []
    for i, ((base, given), word, number) in enumerate(zip(pairs, words, phases, strict=True)):
        kind = ValueError if isinstance(word, str) else TypeError
        check(word in GRADIENTS, where, "gradient", f"one of {GRADIENTS}", word, kind=kind)
        argument, marked = f"parts[{i}] period", any(group.get("period", 1) is None for group in base.param_groups)
        for group in base.param_groups:
            own = group.get("period")
            rule, remedy = f"{own}, as its groups say", "Give None as the pair's period to use those of the groups."
            check(marked or own is None or given in (None, own), where, argument, rule, given, remedy)
            k = given if own is None else own
            k = check_int(where, argument, 1 if k is None and "period" not in group else k)
            slow_lr = group.get("slow_lr", "coupled")
            check(slow_lr in SLOW_LR, where, f"parts[{i}] slow_lr", f"one of {SLOW_LR}", slow_lr)
            first = check_int(where, "phase", group.get("phase", number), 0) % k
            clock = INITIAL_CLOCK | {"period": k, "initial_period": k, "phase": first, "next_sync": first}
            entries.append((group, clock | {"gradient": word, "drift": drift, "slow_lr": slow_lr}))
    check_periods(where, [added for _, added in entries])
    return entries


def _one_per_part(where: str, argument: str, kind: str, value: object, count: int) -> list[Any]:
    values = [value] * count if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    check(len(values) == count, where, argument, f"one {kind}, or one for each of the {count} parts", value)
    return values
