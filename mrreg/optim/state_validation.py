"""Saved states of a `Multirate`, checked before they are loaded: what does not fit is refused, and nothing has changed.

Optimizers are saved without names, so what differs is found by counting and by shape, and by letting copies of the
bases try what they would be given.
"""

import inspect
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mrreg.errors import check_int, invalid_argument, quoted
from mrreg.optim.accumulation import GATHERED
from mrreg.optim.base_step import Step, copied, rebuilt
from mrreg.optim.drift import BUFFER, BUFFERED, DIRECTION, RESTING, Group, key_of
from mrreg.optim.sync_clock import AT_START
from mrreg.optim.validation import GRADIENTS, check_periods

STATELESS = "stateless"  # in saved states only, of a parameter without any
OURS = (DIRECTION, GATHERED, RESTING)  # what we add to the state of a parameter
NOT_TRIED = ("params", "foreach", "fused", "capturable", "differentiable")  # how it is computed, wherever that works
WHOLE = {"clock": 0, "last_sync": -1, "next_sync": 0, "moving": 0, "period": 1, "initial_period": 1}  # at least
REBUILD = "Build the same parts before loading."
OTHER = "It is damaged, or of another optimizer."


def check_saved(where: str, bases: list[tuple[Optimizer, Step]], saved: dict[str, Any]) -> None:
    """Refuse a saved state that does not fit."""
    theirs = _known(where, saved)
    count = sum(len(base.param_groups) for base, _ in bases)
    if len(theirs) != count:
        raise invalid_argument(
            ValueError, where, "state_dict", f"saved with {count} parameter groups", len(theirs), REBUILD
        )
    _check_keys(where, saved)
    remaining = iter(enumerate(theirs))
    merged: list[Group] = []
    for base, step in bases:
        states, new = [], []
        for mine in base.param_groups:
            i, their = next(remaining)
            new.append(_checked(where, f"state_dict['param_groups'][{i}]", mine, their))
            states.append([_own(saved["state"].get(key)) for key in their["params"]])
        _rehearse(where, base, step, new, states, len(merged))
        for i, (group, owns) in enumerate(zip(new, states, strict=True), len(merged)):
            _check_state(where, f"state_dict['param_groups'][{i}]", base, group, owns)
        merged += new
    _check_clock(where, merged)


def _known(where: str, saved: Any) -> list[Group]:
    """The groups of a saved state that looks like one."""
    rule = "the state_dict() of an optimizer"
    for key, kind in (("state", Mapping), ("param_groups", list)):
        if not isinstance(saved.get(key), kind):
            raise invalid_argument(ValueError, where, "state_dict", rule, f"nothing usable under {key!r}")
    for group in saved["param_groups"]:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), list):
            raise invalid_argument(ValueError, where, "state_dict", rule, "a parameter group without 'params'")
    for own in saved["state"].values():
        if not isinstance(own, Mapping):
            raise invalid_argument(ValueError, where, "state_dict", rule, f"{own!r} as the state of a parameter")
    groups: list[Group] = saved["param_groups"]
    return groups


def _check_keys(where: str, saved: dict[str, Any]) -> None:
    """State is of the parameters in the groups."""
    known = [key for group in saved["param_groups"] for key in group["params"]]
    plain = all(isinstance(key, int | str) for key in known)
    if not plain or any(isinstance(key, int) and key not in known for key in saved["state"]):
        rule = "saved with the state of its own parameters"
        raise invalid_argument(
            ValueError, where, "state_dict", rule, f"that of {quoted(map(str, saved['state']))} for {known}"
        )


def _own(state: Any) -> dict[str, Any]:
    """The saved state of one parameter."""
    return {} if not state or STATELESS in state else dict(state)


def _checked(where: str, argument: str, mine: Group, their: Group) -> Group:
    """A group as it would be after loading: with as many parameters, period and kinds of options as at construction."""
    counts = len(mine["params"]), len(their["params"])
    if counts[0] != counts[1]:
        raise invalid_argument(ValueError, where, argument, f"saved with {counts[0]} parameters", counts[1])
    for key, least in WHOLE.items():
        if key in their:
            check_int(where, f"{argument}[{key!r}]", their[key], least)
    period = their.get("initial_period", their.get("period", 1))
    if period != mine["initial_period"]:
        remedy = "Build the optimizer with the saved period; change 'period' in param_groups after loading."
        raise invalid_argument(
            ValueError, where, argument, f"saved with period {mine['initial_period']}", period, remedy
        )
    for key in mine.keys() & their.keys() - {"params", "param_names"}:
        if not _is_alike(mine[key], their[key]):
            raise invalid_argument(
                TypeError, where, f"{argument}[{key!r}]", f"something like {mine[key]!r}", their[key]
            )
    if their.get("gradient", "sync") not in GRADIENTS:
        raise invalid_argument(ValueError, where, f"{argument}['gradient']", f"one of {GRADIENTS}", their["gradient"])
    if their.get("drift", mine["drift"]) is not mine["drift"]:
        raise invalid_argument(
            ValueError, where, argument, f"saved with drift={mine['drift']}", their["drift"], REBUILD
        )
    ours = {key: mine[key] for key in ("period", "initial_period", "gradient", "drift")}
    return {**AT_START, **ours, **their, "params": mine["params"]}


def _is_alike(mine: object, their: object) -> bool:
    """Whether one option may stand where the other stood, by its kind."""
    if isinstance(mine, Tensor) or (isinstance(mine, int | float) and not isinstance(mine, bool)):
        return isinstance(their, int | float) or (isinstance(their, Tensor) and their.numel() == 1)
    if isinstance(mine, bool):
        return their is None or isinstance(their, bool)
    if mine is None:
        return their is None or isinstance(their, int | float)
    if isinstance(mine, tuple | list):
        return isinstance(their, tuple | list) and len(mine) == len(their) and all(map(_is_alike, mine, their))
    return not isinstance(mine, str) or isinstance(their, str)


def _check_clock(where: str, groups: list[Group]) -> None:
    """One clock, which lies between the last and the next sync step of every group, and periods that fit."""
    clocks = [group["clock"] for group in groups]
    if clocks.count(clocks[0]) < len(clocks):
        raise invalid_argument(ValueError, where, "state_dict", "saved by one optimizer, with one clock", clocks)
    for i, group in enumerate(groups):
        argument = f"state_dict['param_groups'][{i}]"
        if not group["last_sync"] < group["clock"] <= group["next_sync"]:
            found = {key: group[key] for key in AT_START}
            raise invalid_argument(ValueError, where, argument, "saved between its last and its next sync step", found)
    check_periods(where, groups)


def _check_state(where: str, argument: str, base: Optimizer, group: Group, states: list[dict[str, Any]]) -> None:
    """State is of a parameter's shape, and every parameter that was moving has its direction."""
    for p, own in zip(group["params"], states, strict=True):
        for key, value in own.items():
            expected = key in (BUFFER, DIRECTION, GATHERED) and value is not None
            if expected or (isinstance(value, Tensor) and value.dim() == p.dim()):
                _check_shape(where, argument, key, value, p)
    if group["drift"]:
        key = key_of(base, states)
        _check_complete(where, argument, group["moving"], sum(own.get(key) is not None for own in states))


def _check_shape(where: str, argument: str, key: str, value: object, p: Tensor) -> None:
    """One entry of the state of a parameter, which must have its shape."""
    if getattr(value, "shape", None) != p.shape:
        found = tuple(value.shape) if isinstance(value, Tensor) else value
        raise invalid_argument(
            ValueError, where, argument, f"saved with {key} of shape {tuple(p.shape)}", found, "The model differs."
        )


def _check_complete(where: str, argument: str, moving: int, found: int) -> None:
    """Every parameter that was moving has its direction."""
    if found < moving:
        remedy = (
            "torch's set_state_dict drops the state of parameters that do not require gradients at that moment: load "
            "into a newly built optimizer, or call close() on this one first."
        )
        raise invalid_argument(
            ValueError, where, argument, f"saved with the state of {moving} moving parameters", found, remedy
        )


def of_bases(state: Mapping[Tensor, dict[str, Any]]) -> dict[Tensor, dict[str, Any]]:
    """The state in which bases find something of theirs: Adam refuses one that holds nothing but what we gathered."""
    return defaultdict(dict, {p: own for p, own in state.items() if own.keys() - set(OURS)})


def _rehearse(
    where: str, base: Optimizer, step: Step, groups: list[Group], states: list[list[dict[str, Any]]], first: int
) -> None:
    """Let a copy of the base take what it would be given: bases find their own faults, but too late to go back."""
    kind, attributes = copied(base)
    params = [p for group in groups for p in group["params"]]
    state = of_bases({p: dict(own) for p, own in zip(params, chain.from_iterable(states), strict=True)})
    given = [dict(group) for group in groups]
    rule = f"a saved state of {kind.__name__}"
    try:
        rebuilt(kind, {**attributes, "state": state, "param_groups": given})
        wanted = [_first_state(kind, step, group) for group in given]
    except Exception as error:
        raise invalid_argument(
            ValueError, where, "state_dict", rule, f"one that it cannot take: {error!r}", OTHER
        ) from error
    for i, (mine, new, expected, owns) in enumerate(zip(base.param_groups, given, wanted, states, strict=True), first):
        if lacking := [key for key in base.defaults if key in mine and key not in new]:
            raise invalid_argument(ValueError, where, "state_dict", rule, f"groups without {quoted(lacking)}", OTHER)
        for p, own in zip(new["params"], owns, strict=True):
            if (found := set(own).difference(OURS)) and (lacking := list(expected.keys() - found)):
                raise invalid_argument(
                    ValueError, where, "state_dict", rule, f"{quoted(found)} without {quoted(lacking)}", OTHER
                )
            for key, shaped in expected.items() if found else ():
                if shaped:
                    _check_shape(where, f"state_dict['param_groups'][{i}]", key, own[key], p)
                elif not _is_alike(0.0, own[key]) or not float(own[key]) >= 0:
                    raise invalid_argument(
                        ValueError, where, "state_dict", f"saved with a number, at least 0, as {key}", own[key], OTHER
                    )


def _first_state(kind: type[Optimizer], step: Step, group: Group) -> dict[str, bool]:
    """What the state of a parameter has after its first step, and whether in its shape; known by trying.

    Of torch's optimizers: others may want more of their parameters than this one has.
    """
    if not kind.__module__.startswith("torch.optim.") and kind not in BUFFERED:
        return {}
    names = inspect.signature(kind).parameters.keys() & group.keys() - set(NOT_TRIED)
    options: Any = {name: v.item() if isinstance(v := group[name], Tensor) else v for name in names}  # from any device
    p = torch.zeros(2, requires_grad=True)
    p.grad = torch.zeros(2)
    trial = kind([p], **options)
    with torch.no_grad():
        step(trial)
    own: dict[str, Any] = trial.state.get(p) or {}
    return {key: isinstance(value, Tensor) and value.shape == p.shape for key, value in own.items()}
