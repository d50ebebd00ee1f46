"""Stepping and copying the base optimizers of a `Multirate`."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from mrreg.optim.drift import DIRECTION, Group, State, has_buffer

Step = Callable[[Optimizer], object]
Prepare = Callable[[], object]

# What torch leaves out of copies too: hooks, and the step that a scheduler wrapped.
LEFT = ("step", "_zero_grad_profile_name")


def call(base: Optimizer, step: Step, groups: list[Group], prepare: Prepare = lambda: None) -> None:
    """Let a base take its step on some of its groups.

    The step is one from under torch's wrapper, which would fire global hooks once more and record a second profile.
    `prepare` is called after the base's own hooks, which may change gradients.
    """
    whole = base.param_groups
    base.param_groups = groups
    try:
        for before in base._optimizer_step_pre_hooks.values():
            before(base, (), {})
        prepare()
        step(base)
        for after in base._optimizer_step_post_hooks.values():
            after(base, (), {})
    finally:
        base.param_groups = whole
    base._opt_called = True  # type: ignore[attr-defined]  # a scheduler of the base asks whether it has stepped


def create_state(base: Optimizer, step: Step, state: State, drift: bool) -> None:
    """Give parameters with a gradient and no state the state of their first step, which must not count."""
    whole = base.param_groups
    fresh = [[p for p in group["params"] if p.grad is not None and not state.get(p)] for group in whole]
    still = {"weight_decay": 0.0}  # else decay would be all that the new state holds
    call(base, step, [{**group, **still, "params": params} for group, params in zip(whole, fresh, strict=True)])
    for group, params in zip(whole, fresh, strict=True):
        for own in (state[p] for p in params if p in state):
            if "step" in own:
                own["step"] = own["step"] * 0
        if drift and group["period"] > 1 and not has_buffer(base, group):
            for p in params:
                state[p][DIRECTION] = torch.zeros_like(p)


def plain_step(base: Optimizer) -> Step:
    """A base's step without torch's wrappers: hooks, and for torch's own classes the switching of gradients."""
    step: Any = type(base).step
    if type(base).__module__.startswith("torch.optim."):
        step = inspect.unwrap(step)
    plain: Step = step.__wrapped__ if getattr(step, "hooked", False) else step
    return plain


def copied(base: Optimizer) -> tuple[type[Optimizer], dict[str, Any]]:
    """Class and attributes; torch's own copy keeps three attributes and loses those of third-party optimizers."""
    if type(base).__getstate__ is not Optimizer.__getstate__:
        return type(base), base.__getstate__()
    kept = {key: value for key, value in vars(base).items() if key not in LEFT and not key.startswith("_optimizer_")}
    return type(base), kept


def rebuilt(kind: type[Optimizer], attributes: dict[str, Any]) -> Optimizer:
    """The copy of a base."""
    base = kind.__new__(kind)
    base.__setstate__(attributes)
    return base
