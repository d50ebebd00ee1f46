"""The position of a `Multirate` in its cycles, as numbers for a logger."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from mrreg.distributed.sharding import is_sharded
from mrreg.optim.clock import Group, is_due, lr_per_step
from mrreg.optim.part import State, moving

PREFIX = "multirate"


def collect_metrics(parts: Iterable[tuple[Optimizer, list[Group]]], state: State, drift: bool) -> dict[str, float]:
    """Return the numbers of `Multirate.metrics`, the parts in order."""
    found: dict[str, float] = {}
    entries = due_entries = 0
    for index, (base, groups) in enumerate(parts):
        clock, last = groups[0]["clock"], groups[0]["last_sync"]
        size, due = sum(p.numel() for group in groups for p in group["params"]), any(map(is_due, groups))
        entries, due_entries = entries + size, due_entries + due * size
        part = f"{PREFIX}/part{index}"
        found[f"{PREFIX}/step"] = clock
        found[f"{part}/due"] = float(due)
        found[f"{part}/period"] = groups[0]["period"]
        found[f"{part}/phase"] = 0 if due else clock - last
        if drift and groups[0]["period"] > 1:
            found[f"{part}/drift_norm"] = _drift_norm(base, groups, state)
    return found | {f"{PREFIX}/due_share": due_entries / entries}


def _drift_norm(base: Optimizer, groups: list[Group], state: State) -> float:
    """Return the Euclidean norm of the displacement of a part by one step of drift."""
    norms = [
        _whole(torch.linalg.vector_norm(direction)) * lr_per_step(group)
        for group in groups
        for direction in moving(base, group, state)[1]
    ]
    return float(torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))) if norms else 0.0


def _whole(norm: Tensor) -> Tensor:
    """Return the norm over all ranks of a tensor that is sharded."""
    return norm.full_tensor() if is_sharded(norm) else norm  # type: ignore[attr-defined]
