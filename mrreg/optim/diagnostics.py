"""What a `Multirate` tells: its parts in words and in numbers, and mistakes that would go unnoticed, each once."""

from collections.abc import Iterable, Iterator

from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.errors import quoted, warn
from mrreg.optim.clock import Group, has_gradient, is_due

CALLS = 3  # of `step` without a gradient, of fast parameters or of any, before it is reported


def check_use(where: str, model: nn.Module, groups: list[Group]) -> None:
    """Name parameters of the model that no part has, and a fast part that comes before all slow ones."""
    periods = {p: group["period"] for group in groups for p in group["params"]}
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if left := [name for name, p in named if p not in periods]:
        warn(f"{where}: {quoted(left)} of the model are in no part, and train only if another optimizer has them.")
    slow = [periods.get(p, 1) > 1 for _, p in named]
    biases = all(p.dim() < 2 for (_, p), late in zip(named, slow, strict=True) if late)  # are slow for another reason
    if len(set(slow)) == 2 and slow == sorted(slow) and not biases:
        remedy = "If the model runs in this order, the backward pass goes through all of it and little time is saved."
        warn(f"{where}: the fast part comes before all slow parameters. {remedy}")


class Diagnostics:
    """Finds schedules that lose the rates of groups, and fast gradients that are there at joint steps alone."""

    def __init__(self, groups: list[Group]) -> None:
        self._lacking: list[Tensor] = []  # fast, with a gradient at a joint step and none since
        self._calls = 0  # since then
        self._idle = 0  # calls on end without any gradient
        self.loaded(groups)

    def loaded(self, groups: list[Group]) -> None:
        """Take the rates that are there now for those to begin with."""
        rates = [group["lr"] for group in groups]
        plain = len(rates) > 1 and not any(isinstance(lr, Tensor) for lr in rates)
        self._lr = rates[0] if plain and len(set(rates)) == 1 else None
        fast, slow = ({g["lr"] for g in groups if (g["period"] > 1) is is_slow} for is_slow in (False, True))
        self._differ = plain and bool(slow) and fast.isdisjoint(slow)

    def call(self, where: str, groups: list[Group]) -> None:
        """Look at a call of `step`: one without any gradient is no step, and many leave slow parts waiting forever."""
        self._idle = 0 if has_gradient(groups) else self._idle + 1
        if self._idle == CALLS and not self._lacking:  # else a warning follows that says more
            remedy = "If the model was sharded or converted since (fully_shard), build the optimizer after that."
            warn(f"{where}.step: no parameter had a gradient in {CALLS} calls, so that nothing moves. {remedy}")
        if self._lr is not None and groups[0]["lr"] != self._lr:
            # one of torch's schedulers, which sets "initial_lr", takes care of every group
            if all(group["lr"] == self._lr and "initial_lr" not in group for group in groups[1:]):
                problem = "the lr of the first parameter group was changed and that of all others was not"
                warn(f"{where}: {problem}: set it in every group.")
            self._lr = None
        begun = {group.get("swa_lr", group.get("initial_lr")) for group in groups if self._differ}  # may end alike
        if len(begun) == len({group["lr"] for group in groups}) == 1 and groups[0]["lr"] > 0:
            self._differ = False
            problem = "the slow part began with an lr of its own, and now all parameter groups have the same"
            warn(f"{where}: {problem}: give the scheduler a list, or take slow_lr='per_gradient', which none undoes.")
        if self._calls == CALLS:
            return
        if all(map(is_due, groups)):
            fast = [p for group in groups if group["period"] == 1 for p in group["params"]]
            self._lacking = self._lacking if self._calls else [p for p in fast if p.grad is not None]
            return
        self._lacking = [p for p in self._lacking if p.grad is None and p.requires_grad]
        self._calls += 1
        if self._calls == CALLS and self._lacking:
            warn(
                f"{where}: {len(self._lacking)} parameters of the fast part had a gradient at the joint step and none "
                f"in {CALLS} calls between. Where layers run under activation checkpointing with use_reentrant=True, a "
                "frozen input cuts off all gradients: use use_reentrant=False."
            )


Parts = Iterable[tuple[Optimizer, list[Group]]]


def describe(parts: Parts) -> Iterator[str]:
    """Yield a line for each part."""
    for index, (base, groups) in enumerate(parts):
        first, params = groups[0], [p for group in groups for p in group["params"]]
        words = {"coupled": "", "per_gradient": " per gradient"}
        lrs = ", ".join(dict.fromkeys(f"{float(group['lr']):g}{words[group['slow_lr']]}" for group in groups))
        place = f"{first['clock'] - first['last_sync']} of {first['next_sync'] - first['last_sync']}"
        yield (
            f"  part {index}: {type(base).__name__}, period {first['period']}, {len(params)} tensors, "
            f"{sum(p.numel() for p in params):,} parameters, lr {lrs}, {'due' if is_due(first) else place}"
        )


def collect_metrics(parts: Parts) -> dict[str, float]:
    """Return the numbers of `Multirate.metrics`, the parts in order."""
    found: dict[str, float] = {}
    entries = due_entries = 0
    for index, (_, groups) in enumerate(parts):
        size, due = sum(p.numel() for group in groups for p in group["params"]), any(map(is_due, groups))
        entries, due_entries = entries + size, due_entries + due * size
        found["multirate/step"] = groups[0]["clock"]
        found[f"multirate/part{index}/due"] = float(due)
        found[f"multirate/part{index}/period"] = groups[0]["period"]
        found[f"multirate/part{index}/phase"] = 0 if due else groups[0]["clock"] - groups[0]["last_sync"]
    return found | {"multirate/due_share": due_entries / entries}
