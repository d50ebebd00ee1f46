"""The mean or the sum of a part's gradients over its cycle, in place of the sync step's own."""

import torch
from torch import Tensor

from mrreg.distributed.sharding import any_nonzero
from mrreg.optim.drift import Group, State

GATHERED = "gathered"  # the gradients since the last sync step, summed: one buffer per parameter


def begin(group: Group, state: State) -> None:
    """Begin with nothing: between two steps the sum is always there, since checkpoints may know no new names."""
    if group["gradient"] != "sync" and group["period"] > 1:
        for p in group["params"]:
            if own := state.get(p):
                own.setdefault(GATHERED, torch.zeros_like(p))


def gather(group: Group, state: State) -> None:
    """Add the gradients of a step between two sync steps."""
    for p in group["params"]:
        if p.grad is not None:
            own = state[p]
            own[GATHERED] = own[GATHERED].add_(p.grad) if GATHERED in own else p.grad.clone()


class Gathered:
    """At a sync step, puts what was gathered where the base reads the gradient; `give_back` undoes that."""

    def __init__(self, group: Group, state: State, steps: int) -> None:
        self._group, self._state = group, state
        self._own: list[tuple[Tensor, Tensor | None]] = []
        if steps > 1:
            for p in group["params"]:
                # What was gathered leaves the state, since Adam takes an empty one for its first step.
                self._put(p, (state.get(p) or {}).pop(GATHERED, None), steps if group["gradient"] == "mean" else 1)

    def _put(self, p: Tensor, total: Tensor | None, steps: int) -> None:
        """One parameter; a step without a gradient counts as one with gradient zero, but not where all steps are."""
        grad = p.grad
        if grad is None and total is not None and not any_nonzero(total):
            return
        total = grad if total is None else total if grad is None else total.add_(grad)
        if total is not None:
            self._own.append((p, grad))
            p.grad = total / steps

    def give_back(self) -> None:
        """Let the user find the gradient of this step where it was."""
        for p, grad in self._own:
            p.grad = grad
        begin(self._group, self._state)
