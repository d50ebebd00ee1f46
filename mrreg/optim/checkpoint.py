"""Saved states of a `Multirate`: brought into the form of its groups, and refused where they are of another optimizer.

Optimizers are saved without names, so what differs is found by counting, by shape and by the names of options. What a
base keeps for itself is its own to check, as in torch.
"""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from mrreg.errors import check, check_int
from mrreg.optim.checks import GRADIENTS, SLOW_LR, check_periods
from mrreg.optim.clock import INITIAL_CLOCK, Group
from mrreg.optim.part import BUFFER, DIRECTION, GATHERED, OURS, RESTING, State

STATELESS = "stateless"  # in saved states only, of a parameter without any
FIXED = ("period", "initial_period", "phase", "gradient", "drift", "slow_lr")  # a base's own state lacks them
LEAST = INITIAL_CLOCK | {"period": 1, "initial_period": 1, "phase": 0}
REBUILD = "Build the same parts before loading."


def add_stateless_entries(saved: dict[str, Any], groups: list[Group], trained: Collection[Tensor]) -> None:
    """Give parameters that train without state an entry: else torch's `set_state_dict` refuses parts of plain SGD."""
    if saved["state"]:
        for saved_group, group in zip(saved["param_groups"], groups, strict=True):
            for index, p in zip(saved_group["params"], group["params"], strict=True):
                if p in trained:
                    saved["state"].setdefault(index, {STATELESS: True})


def fitted(where: str, saved: Any, groups: list[Group], state: State, order: list[Tensor]) -> dict[str, Any]:
    """Return a saved state with the groups of an optimizer, complete, or refuse it."""
    if len(groups) > len(saved["param_groups"]) == 1 and len(saved["param_groups"][0]["params"]) == len(order):
        saved = _divided(groups, saved, order)
    count, rule = len(saved["param_groups"]), f"saved with {len(groups)} parameter groups"
    check(count == len(groups), where, "state_dict", rule, count, REBUILD)
    merged = []
    for i, (current, group) in enumerate(zip(groups, saved["param_groups"], strict=True)):
        argument = f"state_dict['param_groups'][{i}]"
        group = group if "clock" in group else {k: v for k, v in group.items() if k not in FIXED}
        _check_group(where, argument, current, group)
        merged.append({key: current[key] for key in FIXED} | INITIAL_CLOCK | {"next_sync": current["phase"]} | group)
        for p, key in zip(current["params"], group["params"], strict=True):
            _check_state(where, argument, merged[-1], p, saved["state"].get(key) or {}, state.get(p) or {})
    _check_clock(where, merged)
    kept = {k: v for k, v in saved["state"].items() if not (isinstance(v, Mapping) and STATELESS in v)}
    return {**saved, "state": kept, "param_groups": merged}


def _divided(groups: list[Group], saved: dict[str, Any], order: list[Tensor]) -> dict[str, Any]:
    """Return a base's own state over all parameters of the model, in their order, divided as the groups are."""
    (whole,) = saved["param_groups"]
    keys = dict(zip(order, whole["params"], strict=True))
    if any(p not in keys for group in groups for p in group["params"]):
        return saved
    options = {key: value for key, value in whole.items() if key != "param_names"}
    divided = [{**options, "params": [keys[p] for p in group["params"]]} for group in groups]
    used = {key for group in divided for key in group["params"]}
    return {"state": {k: v for k, v in saved["state"].items() if k in used}, "param_groups": divided}


def check_form(where: str, saved: Any) -> None:
    """Refuse what is no saved state at all."""
    rule = "the state_dict() of an optimizer"
    check(isinstance(saved, dict), where, "state_dict", rule, type(saved).__name__, kind=TypeError)
    for key, kind in (("state", Mapping), ("param_groups", list)):
        check(isinstance(saved.get(key), kind), where, "state_dict", rule, f"nothing usable under {key!r}")
    for group in saved["param_groups"]:
        has_params = isinstance(group, Mapping) and isinstance(group.get("params"), list)
        check(has_params, where, "state_dict", rule, "a parameter group without 'params'")


def _check_group(where: str, argument: str, current: Group, saved: Group) -> None:
    """Refuse other parts than those at construction, and options of another optimizer."""
    sizes = len(current["params"]), len(saved["params"])
    check(sizes[0] == sizes[1], where, argument, f"saved with {sizes[0]} parameters", sizes[1])
    for key, least in LEAST.items():
        if key in saved:
            check_int(where, f"{argument}[{key!r}]", saved[key], least)
    own = current["initial_period"]
    period = saved.get("initial_period", saved.get("period", own))
    remedy = "Build the optimizer with the saved period; change 'period' in param_groups after loading."
    check(period == own, where, argument, f"saved with period {own}", period, remedy)
    for key in ("phase", "drift"):
        value = saved.get(key, current[key])
        same = type(value) is type(current[key]) and value == current[key]
        check(same, where, argument, f"saved with {key}={current[key]}", value, REBUILD)
    for key, words in (("gradient", GRADIENTS), ("slow_lr", SLOW_LR)):
        word = saved.get(key, current[key])
        check(word in words, where, f"{argument}[{key!r}]", f"one of {words}", word)


def _check_clock(where: str, groups: list[Group]) -> None:
    """Refuse several clocks, one outside a group's cycle, and periods that do not fit."""
    clocks = [group["clock"] for group in groups]
    check(len(set(clocks)) == 1, where, "state_dict", "saved by one optimizer, with one clock", clocks)
    for i, group in enumerate(groups):
        inside, found = group["last_sync"] < group["clock"] <= group["next_sync"], {k: group[k] for k in INITIAL_CLOCK}
        rule = "saved between its last and its next sync step"
        check(inside, where, f"state_dict['param_groups'][{i}]", rule, found)
    check_periods(where, groups)


def _check_state(where: str, argument: str, group: Group, p: Tensor, saved: Any, live: Any) -> None:
    """Refuse state without what is ours, and that of another model: what is ours, or has the parameter's shape now."""
    there = {key for key, value in saved.items() if value is not None}
    if there - {*OURS, STATELESS} and group["drift"] and 0 <= group["last_sync"] < group["next_sync"] - 1:
        moves = there & {DIRECTION, BUFFER, RESTING}  # between two gradients
        rule, remedy = f"saved with {DIRECTION} of every parameter that trains", "Save and load it between steps."
        check(moves, where, argument, rule, sorted(map(str, there)), remedy)
    for key, value in saved.items():
        shape = getattr(value, "shape", None)
        if value is not None and (key in {DIRECTION, GATHERED} or getattr(live.get(key), "shape", None) == p.shape):
            rule, found = f"saved with {key} of shape {tuple(p.shape)}", value if shape is None else tuple(shape)
            check(shape == p.shape, where, argument, rule, found, "The model differs.")
