"""Accumulation of a slow part's gradients over its cycle, for gradient="mean" and "sum"."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mrreg.distributed.sharding import any_nonzero
from mrreg.optim.drift import Group, State

GATHERED = "gathered"  # sum of the gradients since the last sync step: one buffer per parameter


def ensure_accumulators(group: Group, state: State) -> None:
    """Begin with zeros: checkpoint formats that load in place know only the names that are there."""
    if group["gradient"] != "sync" and group["period"] > 1:
        for p in group["params"]:
            if param_state := state.get(p):
                param_state.setdefault(GATHERED, torch.zeros_like(p))


def accumulate(group: Group, state: State) -> None:
    """Add the gradients of a step between two sync steps."""
    for p in group["params"]:
        if p.grad is not None:
            param_state = state[p]
            sums = param_state.get(GATHERED)
            param_state[GATHERED] = p.grad.clone() if sums is None else sums.add_(p.grad)


@contextmanager
def accumulated_gradients(groups: list[Group], state: State, now: int) -> Iterator[None]:
    """Put accumulated gradients in the place of the current ones for one step of the base.

    Afterwards the user finds the gradient of this step where it was.
    """
    replaced = []
    for group in groups:
        steps = now - group["last_sync"]
        for p in group["params"] if group["gradient"] != "sync" and steps > 1 else ():
            # The sum leaves the state meanwhile, since Adam takes an empty one for its first step.
            total = _total((state.get(p) or {}).pop(GATHERED, None), p.grad)
            if total is not None:
                replaced.append((p, p.grad))
                p.grad = total / (steps if group["gradient"] == "mean" else 1)
    try:
        yield
    finally:
        for p, grad in replaced:
            p.grad = grad
        for group in groups:
            ensure_accumulators(group, state)


def _total(sums: Tensor | None, grad: Tensor | None) -> Tensor | None:
    """Add the last gradient; a missing one counts as zero, but a parameter that had none at all is skipped."""
    if sums is None:
        return grad
    if grad is None:
        return sums if any_nonzero(sums) else None
    return sums.add_(grad)
