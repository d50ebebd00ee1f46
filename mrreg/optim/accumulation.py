"""Accumulation of a slow part's gradients over its cycle, for gradient="mean" and "sum"."""

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


class AccumulatedGradients:
    """Accumulated gradients in the place of the current ones for one step of the base; `restore` undoes that."""

    def __init__(self, group: Group, state: State, steps: int) -> None:
        self._group, self._state = group, state
        self._replaced: list[tuple[Tensor, Tensor | None]] = []
        if steps > 1:
            for p in group["params"]:
                # The sum leaves the state meanwhile, since Adam takes an empty one for its first step.
                sums = (state.get(p) or {}).pop(GATHERED, None)
                self._replace(p, sums, steps if group["gradient"] == "mean" else 1)

    def _replace(self, p: Tensor, total: Tensor | None, steps: int) -> None:
        """Set one gradient; a missing one counts as zero, but a parameter that had none at all is skipped."""
        grad = p.grad
        if grad is None and total is not None and not any_nonzero(total):
            return
        total = grad if total is None else total if grad is None else total.add_(grad)
        if total is not None:
            self._replaced.append((p, grad))
            p.grad = total / steps

    def restore(self) -> None:
        """Let the user find the gradient of this step where it was."""
        for p, grad in self._replaced:
            p.grad = grad
        ensure_accumulators(self._group, self._state)
