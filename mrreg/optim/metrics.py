"""The parts of a `Multirate` and their positions in their cycles: as numbers for a logger, and in words."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from mrreg.distributed.sharding import is_sharded
from mrreg.optim.clock import Group, describe_position, is_due, lr_per_step
from mrreg.optim.part import Part, State, moving

PREFIX = "multirate"

Parts = Iterable[tuple[Optimizer, list[Group]]]


def divide(bases: Iterable[Part]) -> Iterator[tuple[Optimizer, list[Group]]]:
    """Yield base and groups of each part, in the order given, the periods within one base ascending."""
    for base in (each.base for each in bases):
        for period in sorted({group["initial_period"] for group in base.param_groups}):
            yield base, [group for group in base.param_groups if group["initial_period"] == period]


def describe(parts: Parts) -> Iterator[str]:
    """Yield a line for each part."""
    for index, (base, groups) in enumerate(parts):
        first, params = groups[0], [p for group in groups for p in group["params"]]
        lrs = ", ".join(dict.fromkeys(f"{lr_per_step(group):g}" for group in groups))
        yield (
            f"  part {index}: {type(base).__name__}, period {first['period']}, {len(params)} tensors, "
            f"{sum(p.numel() for p in params):,} parameters, lr {lrs}, {describe_position(first)}"
        )


def collect_metrics(parts: Parts, state: State, drift: bool) -> dict[str, float]:
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
    pairs = [(lr_per_step(group), d) for group in groups for d in moving(base, group, state)[1]]
    norms = [_whole(torch.linalg.vector_norm(direction)) * lr for lr, direction in pairs]
    return float(torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))) if norms else 0.0


def _whole(norm: Tensor) -> Tensor:
    """Return the norm over all ranks of a tensor that is sharded."""
    return norm.full_tensor() if is_sharded(norm) else norm  # type: ignore[attr-defined]
