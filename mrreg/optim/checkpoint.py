"""Saved states of a `Multirate`: brought into the form of its groups, and refused where they are of another optimizer.

Optimizers are saved without names, so what differs is found by counting, by shape and by the names of options. What a
base keeps for itself is its own to check, as in torch.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mrreg.errors import check_int, invalid_argument
from mrreg.optim.checks import GRADIENTS, SLOW_LR, check_periods
from mrreg.optim.clock import INITIAL_CLOCK, Group, initial_clock
from mrreg.optim.part import BUFFER, DIRECTION, GATHERED, direction_of

STATELESS = "stateless"  # in saved states only, of a parameter without any
FIXED = ("period", "initial_period", "phase", "gradient", "drift", "slow_lr")  # a base's own state lacks them
LEAST = INITIAL_CLOCK | {"period": 1, "initial_period": 1, "phase": 0}
SAVED = "the state_dict() of an optimizer"
REBUILD = "Build the same parts before loading."

Layout = list[list[Tensor]]  # the parameters of each group, in order


def add_stateless_entries(saved: dict[str, Any], groups: list[Group], trained: Collection[Tensor]) -> None:
    """Give parameters that train without state an entry beside those with one.

    Without it, torch's `set_state_dict` refuses a fast part of plain SGD beside a slow part that drifts.
    """
    if saved["state"]:
        for saved_group, group in zip(saved["param_groups"], groups, strict=True):
            for index, p in zip(saved_group["params"], group["params"], strict=True):
                if p in trained:
                    saved["state"].setdefault(index, {STATELESS: True})


def fitted(
    where: str, saved: Any, bases: Iterable[Optimizer], groups: list[Group], layouts: Iterable[Layout]
) -> dict[str, Any]:
    """Return a saved state with the groups of an optimizer, complete, or refuse it."""
    check_form(where, saved)
    saved = _divided_as(groups, saved, layouts)
    if len(saved["param_groups"]) != len(groups):
        rule = f"saved with {len(groups)} parameter groups"
        raise invalid_argument(ValueError, where, "state_dict", rule, len(saved["param_groups"]), REBUILD)
    owners = [base for base in bases for _ in base.param_groups]
    merged = []
    for i, (base, current, group) in enumerate(zip(owners, groups, saved["param_groups"], strict=True)):
        argument = f"state_dict['param_groups'][{i}]"
        _check_group(where, argument, current, group)
        merged.append(_missing_options(current, group) | group)
        states = [saved["state"].get(key) or {} for key in group["params"]]
        _check_state(where, argument, base, current, merged[-1], states)
    _check_clock(where, merged)
    state = {key: each for key, each in saved["state"].items() if STATELESS not in each}
    return {**saved, "state": state, "param_groups": merged}


def check_form(where: str, saved: Any) -> None:
    """Refuse what has not the form of a state dict."""
    if not isinstance(saved, dict):
        raise invalid_argument(TypeError, where, "state_dict", SAVED, type(saved).__name__)
    for key, kind in (("state", Mapping), ("param_groups", list)):
        if not isinstance(saved.get(key), kind):
            raise invalid_argument(ValueError, where, "state_dict", SAVED, f"nothing usable under {key!r}")
    if not all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in saved["param_groups"]):
        raise invalid_argument(ValueError, where, "state_dict", SAVED, "a parameter group without 'params'")
    if words := [each for each in saved["state"].values() if not isinstance(each, Mapping)]:
        raise invalid_argument(ValueError, where, "state_dict", SAVED, f"{words[0]!r} as the state of a parameter")


def _divided_as(groups: list[Group], saved: dict[str, Any], layouts: Iterable[Layout]) -> dict[str, Any]:
    """Return a base's own state divided as the groups are, by the first layout that has its sizes."""
    if any("clock" in group for group in saved["param_groups"]):
        return saved
    plain = [{k: v for k, v in group.items() if k not in FIXED} for group in saved["param_groups"]]
    sizes = [len(group["params"]) for group in plain]
    layout = next((each for each in layouts if sizes == [len(params) for params in each]), None)
    if layout is None or sizes == [len(group["params"]) for group in groups]:
        return {**saved, "param_groups": plain}
    source = {
        p: (key, options)
        for options, params in zip(plain, layout, strict=True)
        for p, key in zip(params, options["params"], strict=True)
    }
    divided = []
    for group in groups:
        keys, options = zip(*(source[p] for p in group["params"]), strict=True)
        divided.append({k: v for k, v in options[0].items() if k != "param_names"} | {"params": list(keys)})
    kept = {key for group in divided for key in group["params"]}
    state = {key: value for key, value in saved["state"].items() if key in kept}
    return {"state": state, "param_groups": divided}


def _missing_options(current: Group, saved: Group) -> Group:
    """Return options, with values, that a saved group may lack: it is of a base optimizer, or older than an option."""
    fixed = {key: current[key] for key in FIXED}
    if "clock" in saved:  # "lr" was divided by the period before it was saved
        fixed["slow_lr"] = "coupled"
    return fixed | initial_clock(current["phase"])


def _check_group(where: str, argument: str, current: Group, saved: Group) -> None:
    """Refuse other parts than those at construction, and options of another optimizer."""
    sizes = len(current["params"]), len(saved["params"])
    if sizes[0] != sizes[1]:
        raise invalid_argument(ValueError, where, argument, f"saved with {sizes[0]} parameters", sizes[1])
    for key, least in LEAST.items():
        if key in saved:
            check_int(where, f"{argument}[{key!r}]", saved[key], least)
    period = saved.get("initial_period", saved.get("period", current["initial_period"]))
    if period != current["initial_period"]:
        remedy = "Build the optimizer with the saved period; change 'period' in param_groups after loading."
        rule = f"saved with period {current['initial_period']}"
        raise invalid_argument(ValueError, where, argument, rule, period, remedy)
    for key in ("phase", "drift"):
        if saved.get(key, current[key]) != current[key]:
            raise invalid_argument(ValueError, where, argument, f"saved with {key}={current[key]}", saved[key], REBUILD)
    for key, words in (("gradient", GRADIENTS), ("slow_lr", SLOW_LR)):
        if saved.get(key, current[key]) not in words:
            raise invalid_argument(ValueError, where, f"{argument}[{key!r}]", f"one of {words}", saved[key])


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


def _check_state(
    where: str, argument: str, base: Optimizer, current: Group, saved: Group, states: list[Mapping[str, Any]]
) -> None:
    """Refuse state of another model, and parameters that were moving without their direction."""
    for p, param_state in zip(current["params"], states, strict=True):
        for key, value in param_state.items():
            same_rank = isinstance(value, Tensor) and value.dim() == p.dim()
            if key in (BUFFER, DIRECTION, GATHERED) or (same_rank and not _broadcasts(value, p)):
                shape = getattr(value, "shape", None)
                if value is not None and shape != p.shape:
                    rule = f"saved with {key} of shape {tuple(p.shape)}"
                    found = value if shape is None else tuple(shape)
                    raise invalid_argument(ValueError, where, argument, rule, found, "The model differs.")
    found = sum(direction_of(base, each) is not None for each in states)
    if saved["drift"] and found < saved["moving"]:
        remedy = (
            "torch's set_state_dict drops the state of parameters that do not require gradients at that moment: load "
            "into a newly built optimizer, or call close() on this one first."
        )
        rule = f"saved with the state of {saved['moving']} moving parameters"
        raise invalid_argument(ValueError, where, argument, rule, found, remedy)


def _broadcasts(value: Tensor, p: Tensor) -> bool:
    """Return True if a tensor may be a factor of something in a parameter's shape, such as rows of Adafactor."""
    return all(size in (1, whole) for size, whole in zip(value.shape, p.shape, strict=True))
