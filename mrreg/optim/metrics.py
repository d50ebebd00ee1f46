"""The parts of a `Multirate` and their positions in their cycles: as numbers for a logger, and in words."""

from collections.abc import Iterable, Iterator

from torch.optim import Optimizer

from mrreg.optim.clock import Group, describe_position, is_due
from mrreg.optim.part import Part

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
        words = {"coupled": "", "per_gradient": " per gradient"}
        lrs = ", ".join(dict.fromkeys(f"{float(group['lr']):g}{words[group['slow_lr']]}" for group in groups))
        yield (
            f"  part {index}: {type(base).__name__}, period {first['period']}, {len(params)} tensors, "
            f"{sum(p.numel() for p in params):,} parameters, lr {lrs}, {describe_position(first)}"
        )


def collect_metrics(parts: Parts) -> dict[str, float]:
    """Return the numbers of `Multirate.metrics`, the parts in order."""
    found: dict[str, float] = {}
    entries = due_entries = 0
    for index, (_, groups) in enumerate(parts):
        clock, last = groups[0]["clock"], groups[0]["last_sync"]
        size, due = sum(p.numel() for group in groups for p in group["params"]), any(map(is_due, groups))
        entries, due_entries = entries + size, due_entries + due * size
        part = f"{PREFIX}/part{index}"
        found[f"{PREFIX}/step"] = clock
        found[f"{part}/due"] = float(due)
        found[f"{part}/period"] = groups[0]["period"]
        found[f"{part}/phase"] = 0 if due else clock - last
    return found | {f"{PREFIX}/due_share": due_entries / entries}
