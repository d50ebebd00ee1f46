"""Steps and copies of the base optimizers of a `Multirate`."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mrreg.optim.accumulation import GATHERED
from mrreg.optim.drift import DIRECTION, RESTING, Group, State, buffer_is_direction

Step = Callable[[Optimizer], object]

MULTIRATE_STATE_KEYS = {DIRECTION, GATHERED, RESTING}  # what is added to a base's state of a parameter

# Attributes that torch leaves out of copies too: the step that a scheduler wrapped, and a name for the profiler.
NOT_COPIED = ("step", "_zero_grad_profile_name")


def step_groups(base: Optimizer, step: Step, groups: list[Group], prepare: Callable[[], object] | None = None) -> None:
    """Let a base take its step on some of its groups.

    `step` comes from under torch's wrapper, which would fire global hooks once more and record a second profile.
    `prepare` is called after the base's own hooks, since they may change gradients.
    """
    all_groups = base.param_groups
    base.param_groups = groups
    try:
        for hook in base._optimizer_step_pre_hooks.values():
            hook(base, (), {})
        if prepare is not None:
            prepare()
        step(base)
        for hook in base._optimizer_step_post_hooks.values():
            hook(base, (), {})
    finally:
        base.param_groups = all_groups
    base._opt_called = True  # type: ignore[attr-defined]  # a scheduler of the base asks if it has stepped


def create_state(base: Optimizer, step: Step, state: State, drift: bool) -> None:
    """Give parameters with a gradient and no state the state of their first step, which must not count."""
    groups = base.param_groups
    fresh = [[p for p in group["params"] if p.grad is not None and not state.get(p)] for group in groups]
    no_decay = {"weight_decay": 0.0}  # else decay would be all that the new state holds
    step_groups(base, step, [{**g, **no_decay, "params": params} for g, params in zip(groups, fresh, strict=True)])
    for group, params in zip(groups, fresh, strict=True):
        for param_state in (state[p] for p in params if p in state):
            if "step" in param_state:
                param_state["step"] = param_state["step"] * 0
        if drift and group["period"] > 1 and not buffer_is_direction(base, group):
            for p in params:
                state[p][DIRECTION] = torch.zeros_like(p)


def unwrapped_step(base: Optimizer) -> Step:
    """Return a base's step without torch's wrappers: no hooks, and for torch's own classes no gradient mode."""
    step: Any = type(base).step
    if type(base).__module__.startswith("torch.optim."):
        step = inspect.unwrap(step)
    plain: Step = step.__wrapped__ if getattr(step, "hooked", False) else step
    return plain


def class_and_attributes(base: Optimizer) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return class and attributes for a copy; torch would keep three attributes and lose those of third parties."""
    if type(base).__getstate__ is not Optimizer.__getstate__:
        return type(base), base.__getstate__()
    kept = {k: v for k, v in vars(base).items() if k not in NOT_COPIED and not k.startswith("_optimizer_")}
    return type(base), kept


def rebuild(kind: type[Optimizer], attributes: dict[str, Any]) -> Optimizer:
    """Make a base from its class and attributes."""
    base = kind.__new__(kind)
    base.__setstate__(attributes)
    return base


def state_for_bases(state: Mapping[Tensor, dict[str, Any]]) -> dict[Tensor, dict[str, Any]]:
    """Leave out the state in which a base finds nothing of its own: Adam refuses one that is not empty."""
    return defaultdict(dict, {p: each for p, each in state.items() if each.keys() - MULTIRATE_STATE_KEYS})
