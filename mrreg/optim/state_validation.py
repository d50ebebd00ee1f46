"""Saved states of a `Multirate`, checked before they are loaded: what does not fit is refused, and nothing has changed.

Optimizers are saved without names, so what differs is found by counting and by shape, and by letting copies of the
bases try what they would be given.
"""

import inspect
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mrreg.errors import check_int, invalid_argument, quoted
from mrreg.optim.accumulation import GATHERED
from mrreg.optim.base_step import MULTIRATE_STATE_KEYS, Step, class_and_attributes, rebuild, state_for_bases
from mrreg.optim.drift import BUFFER, BUFFERED, DIRECTION, Group, direction_of
from mrreg.optim.plain_state import FIXED_OPTIONS
from mrreg.optim.sync_clock import INITIAL_CLOCK, initial_clock
from mrreg.optim.validation import GRADIENTS, SLOW_LR, check_periods

STATELESS = "stateless"  # in saved states only, of a parameter without any
UNTRIED_OPTIONS = {"params", "foreach", "fused", "capturable", "differentiable"}  # how a step is computed
LEAST = INITIAL_CLOCK | {"period": 1, "initial_period": 1, "phase": 0}
REBUILD = "Build the same parts before loading."
DAMAGED = "It is damaged, or of another optimizer."


def add_stateless_entries(saved: dict[str, Any], groups: list[Group], trained: Collection[Tensor]) -> None:
    """Give parameters that train without state an entry beside those with one.

    Without it, torch's `set_state_dict` refuses a fast part of plain SGD beside a slow part that drifts.
    """
    if saved["state"]:
        for saved_group, group in zip(saved["param_groups"], groups, strict=True):
            for index, p in zip(saved_group["params"], group["params"], strict=True):
                if p in trained:
                    saved["state"].setdefault(index, {STATELESS: True})


def complete_loaded_state(state: dict[str, Any], current: list[Group]) -> None:
    """Give groups of a plain checkpoint our options, and drop the entries of parameters without state."""
    for group, new in zip(current, state["param_groups"], strict=True):
        new |= {key: value for key, value in _missing_options(group, new).items() if key not in new}
    for p in [p for p, param_state in state["state"].items() if STATELESS in param_state]:
        del state["state"][p]


def _missing_options(current: Group, saved: Group) -> Group:
    """Return options, with values, that a saved group may lack: it is of a base optimizer, or older than an option."""
    fixed = {key: current[key] for key in FIXED_OPTIONS}
    if "clock" in saved:  # "lr" was divided by the period before it was saved
        fixed["slow_lr"] = "coupled"
    return fixed | initial_clock(current["phase"])


def validate_state_dict(where: str, bases: list[tuple[Optimizer, Step]], saved: dict[str, Any]) -> None:
    """Refuse a saved state that does not fit."""
    saved_groups: list[Group] = saved["param_groups"]
    count = sum(len(base.param_groups) for base, _ in bases)
    if len(saved_groups) != count:
        raise invalid_argument(
            ValueError, where, "state_dict", f"saved with {count} parameter groups", len(saved_groups), REBUILD
        )
    _check_keys(where, saved)
    remaining = iter(enumerate(saved_groups))
    merged: list[Group] = []
    for base, step in bases:
        states, new = [], []
        for current in base.param_groups:
            i, group = next(remaining)
            new.append(_merged_group(where, f"state_dict['param_groups'][{i}]", current, group))
            states.append([_param_state(saved["state"].get(key)) for key in group["params"]])
        _trial_load(where, base, step, new, states, len(merged))
        for i, (group, group_states) in enumerate(zip(new, states, strict=True), len(merged)):
            _check_state(where, f"state_dict['param_groups'][{i}]", base, group, group_states)
        merged += new
    _check_clock(where, merged)


def check_form(where: str, saved: Any) -> None:
    """Refuse an object that does not look like a saved state."""
    if not isinstance(saved, dict):
        rule = "the state_dict() of an optimizer"
        raise invalid_argument(TypeError, where, "state_dict", rule, type(saved).__name__)
    rule = "the state_dict() of an optimizer"
    for key, kind in (("state", Mapping), ("param_groups", list)):
        if not isinstance(saved.get(key), kind):
            raise invalid_argument(ValueError, where, "state_dict", rule, f"nothing usable under {key!r}")
    for group in saved["param_groups"]:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), list):
            raise invalid_argument(ValueError, where, "state_dict", rule, "a parameter group without 'params'")
    for param_state in saved["state"].values():
        if not isinstance(param_state, Mapping):
            raise invalid_argument(
                ValueError, where, "state_dict", rule, f"{param_state!r} as the state of a parameter"
            )


def _check_keys(where: str, saved: dict[str, Any]) -> None:
    """Refuse state of parameters that are in no group."""
    known = [key for group in saved["param_groups"] for key in group["params"]]
    plain = all(isinstance(key, int | str) for key in known)
    if not plain or any(isinstance(key, int) and key not in known for key in saved["state"]):
        rule = "saved with the state of its own parameters"
        raise invalid_argument(
            ValueError, where, "state_dict", rule, f"that of {quoted(map(str, saved['state']))} for {known}"
        )


def _param_state(state: Any) -> dict[str, Any]:
    """Return the saved state of one parameter; empty where it trains without any."""
    return {} if not state or STATELESS in state else dict(state)


def _merged_group(where: str, argument: str, current: Group, saved: Group) -> Group:
    """Return a group as it would be after loading; its size, period and kinds of options stay as constructed."""
    counts = len(current["params"]), len(saved["params"])
    if counts[0] != counts[1]:
        raise invalid_argument(ValueError, where, argument, f"saved with {counts[0]} parameters", counts[1])
    for key, least in LEAST.items():
        if key in saved:
            check_int(where, f"{argument}[{key!r}]", saved[key], least)
    _check_options(where, argument, current, saved)
    return {**_missing_options(current, saved), **saved, "params": current["params"]}


def _check_options(where: str, argument: str, current: Group, saved: Group) -> None:
    """Refuse other parts than those at construction, and options of another kind."""
    period = saved.get("initial_period", saved.get("period", current["initial_period"]))
    if period != current["initial_period"]:
        remedy = "Build the optimizer with the saved period; change 'period' in param_groups after loading."
        rule = f"saved with period {current['initial_period']}"
        raise invalid_argument(ValueError, where, argument, rule, period, remedy)
    for key in ("phase", "drift"):
        if saved.get(key, current[key]) != current[key]:
            raise invalid_argument(ValueError, where, argument, f"saved with {key}={current[key]}", saved[key], REBUILD)
    for key in current.keys() & saved.keys() - {"params", "param_names"}:
        if not _is_alike(current[key], saved[key]):
            rule = f"something like {current[key]!r}"
            raise invalid_argument(TypeError, where, f"{argument}[{key!r}]", rule, saved[key])
    for key, words in (("gradient", GRADIENTS), ("slow_lr", SLOW_LR)):
        if saved.get(key, current[key]) not in words:
            raise invalid_argument(ValueError, where, f"{argument}[{key!r}]", f"one of {words}", saved[key])


def _is_alike(current: object, saved: object) -> bool:
    """Tell by its kind if one option may stand where the other stood."""
    if isinstance(current, Tensor) or (isinstance(current, int | float) and not isinstance(current, bool)):
        return isinstance(saved, int | float) or (isinstance(saved, Tensor) and saved.numel() == 1)
    if isinstance(current, bool):
        return saved is None or isinstance(saved, bool)
    if current is None:
        return saved is None or isinstance(saved, int | float)
    if isinstance(current, tuple | list):
        return isinstance(saved, tuple | list) and len(current) == len(saved) and all(map(_is_alike, current, saved))
    return not isinstance(current, str) or isinstance(saved, str)


def _check_clock(where: str, groups: list[Group]) -> None:
    """Refuse several clocks, one outside a group's cycle, and periods that do not fit."""
    clocks = [group["clock"] for group in groups]
    if clocks.count(clocks[0]) < len(clocks):
        raise invalid_argument(ValueError, where, "state_dict", "saved by one optimizer, with one clock", clocks)
    for i, group in enumerate(groups):
        if not group["last_sync"] < group["clock"] <= group["next_sync"]:
            found = {key: group[key] for key in INITIAL_CLOCK}
            rule = "saved between its last and its next sync step"
            raise invalid_argument(ValueError, where, f"state_dict['param_groups'][{i}]", rule, found)
    check_periods(where, groups)


def _check_state(where: str, argument: str, base: Optimizer, group: Group, states: list[dict[str, Any]]) -> None:
    """Refuse state of another shape, and parameters that were moving without their direction."""
    for p, param_state in zip(group["params"], states, strict=True):
        for key, value in param_state.items():
            expected = key in (BUFFER, DIRECTION, GATHERED) and value is not None
            if expected or (isinstance(value, Tensor) and value.dim() == p.dim() and not _broadcasts(value, p)):
                _check_shape(where, argument, key, value, p)
    if group["drift"]:
        _check_complete(where, argument, group["moving"], sum(direction_of(base, each) is not None for each in states))


def _broadcasts(value: Tensor, p: Tensor) -> bool:
    """Return True if a tensor may be a factor of something in a parameter's shape, such as rows of Adafactor."""
    return all(size in (1, whole) for size, whole in zip(value.shape, p.shape, strict=True))


def _check_shape(where: str, argument: str, key: str, value: object, p: Tensor) -> None:
    """Refuse an entry of a parameter's state that has not its shape."""
    if getattr(value, "shape", None) != p.shape:
        found = tuple(value.shape) if isinstance(value, Tensor) else value
        rule = f"saved with {key} of shape {tuple(p.shape)}"
        raise invalid_argument(ValueError, where, argument, rule, found, "The model differs.")


def _check_complete(where: str, argument: str, moving: int, found: int) -> None:
    """Refuse fewer directions than there were moving parameters."""
    if found < moving:
        remedy = (
            "torch's set_state_dict drops the state of parameters that do not require gradients at that moment: load "
            "into a newly built optimizer, or call close() on this one first."
        )
        raise invalid_argument(
            ValueError, where, argument, f"saved with the state of {moving} moving parameters", found, remedy
        )


def _trial_load(
    where: str, base: Optimizer, step: Step, groups: list[Group], states: list[list[dict[str, Any]]], first: int
) -> None:
    """Let a copy of the base load what it would be given: bases find their own faults, but too late to go back."""
    kind, attributes = class_and_attributes(base)
    params = [p for group in groups for p in group["params"]]
    state = state_for_bases({p: dict(each) for p, each in zip(params, chain.from_iterable(states), strict=True)})
    given = [dict(group) for group in groups]
    rule = f"a saved state of {kind.__name__}"
    try:
        rebuild(kind, {**attributes, "state": state, "param_groups": given})
        expected = [{d: _first_state(kind, step, g, d) for d in {p.dim() for p in g["params"]}} for g in given]
    except Exception as error:
        raise invalid_argument(
            ValueError, where, "state_dict", rule, f"one that it cannot take: {error!r}", DAMAGED
        ) from error
    for i, (current, new) in enumerate(zip(base.param_groups, given, strict=True)):
        if missing := [key for key in base.defaults if key in current and key not in new]:
            raise invalid_argument(ValueError, where, "state_dict", rule, f"groups without {quoted(missing)}", DAMAGED)
        for p, param_state in zip(new["params"], states[i], strict=True):
            _check_base_state(
                where, f"state_dict['param_groups'][{first + i}]", rule, expected[i][p.dim()], p, param_state
            )


def _check_base_state(
    where: str, argument: str, rule: str, expected: dict[str, str], p: Tensor, param_state: dict[str, Any]
) -> None:
    """Compare a parameter's saved state with what its base keeps after a first step."""
    found = set(param_state) - MULTIRATE_STATE_KEYS
    if not found:
        return
    if missing := list(expected.keys() - found):
        raise invalid_argument(
            ValueError, where, "state_dict", rule, f"{quoted(found)} without {quoted(missing)}", DAMAGED
        )
    for key, kind in expected.items():
        value = param_state[key]
        if kind == "shaped":
            _check_shape(where, argument, key, value, p)
        elif kind == "number" and (not _is_alike(0.0, value) or not float(value) >= 0):
            rule = f"saved with a number, at least 0, as {key}"
            raise invalid_argument(ValueError, where, "state_dict", rule, value, DAMAGED)


def _first_state(kind: type[Optimizer], step: Step, group: Group, dims: int) -> dict[str, str]:
    """Find by trying what a parameter's state has after its first step: "shaped" as it is, a "number", or "other".

    Only for torch's optimizers: others may want more of their parameters than the one here has.
    """
    if not kind.__module__.startswith("torch.optim.") and kind not in BUFFERED:
        return {}
    names = inspect.signature(kind).parameters.keys() & group.keys() - UNTRIED_OPTIONS
    options: Any = {name: v.item() if isinstance(v := group[name], Tensor) else v for name in names}  # from any device
    p = torch.zeros((2,) * dims, requires_grad=True)
    p.grad = torch.zeros_like(p)
    trial = kind([p], **options)
    with torch.no_grad():
        step(trial)
    param_state: dict[str, Any] = trial.state.get(p) or {}
    return {key: _kind_of(value, p) for key, value in param_state.items()}


def _kind_of(value: object, p: Tensor) -> str:
    """Classify an entry of a parameter's state."""
    if isinstance(value, Tensor) and value.shape != p.shape:
        return "number" if value.dim() == 0 else "other"  # as the factors of a second moment
    return "shaped" if isinstance(value, Tensor) else "number"
