"""Report of `thin`: the groups of a model, which are dropped and which are refused and why, and the saving."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from mrreg.errors import SHOWN, check_type, invalid_argument, quoted
from mrreg.masks.groups import AttributeOverride, Block, Slot, UnitGroup
from mrreg.thinning.twin import WHERE

LITTLE = 0.85  # of a plain step's FLOPs: a masked step that computes more saves too little to go without a word


@dataclass(frozen=True)
class ThinEntry(UnitGroup):
    """One group of units, or channels that cannot be one: the kind "none".

    Args:
        kind: "hidden", "heads", "channels", "inputs", "stream" or "blocks"; "none" where the channels form no group.
        units: Number of units.
        kept: Number of units present on a masked step; all of them where none is dropped.
        slots: The places in parameters and buffers where entries of the units lie.
        blocks: The units, if they are blocks.
        zeroed: True if absent units are computed, and the columns that read them are zero: that regularizes as leaving
            them out does, and saves nothing.
        admitted: True if units are dropped.
        reason: Obstacle, if none is dropped; of units that are zeroed, the obstacle to leaving them out.
    """

    admitted: bool = False
    reason: str = ""

    def refused(self, reason: str) -> "ThinEntry":
        """Return it with all of its units kept, and the reason why."""
        return replace(self, kept=self.units, reason=reason)

    @property
    def p(self) -> float:
        """Share of the units that is absent on masked steps."""
        return round(1 - self.kept / self.units, 4)

    @property
    def outcome(self) -> str:
        """The outcome in a word or two."""
        return ("zeroed" if self.keeps_shape else "left out") if self.admitted else "whole"


@dataclass(eq=False, repr=False)
class ThinReport(Mapping[str, ThinEntry]):
    """What `thin` found in a model: a mapping from the names of groups to entries, and the FLOPs of a masked step.

    An entry has a `kind`, the numbers of `units` and of `kept` ones, and the `reason` if none is dropped. `thin` and
    `load` make reports; `print(report)` shows all of it.

    Args:
        entries: Groups and refused channels, by name.
        overrides: Integer attributes of modules that change on masked steps.
        k: Steps per cycle.
        flops: FLOPs of a masked and of a plain step, forward and backward.
        signature: Shapes and classes of the model's parts, by name, by which a plan knows its model.
        dropouts: Modules that still drop something at random.

    Example:
        >>> import mrreg, torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> _, report = mrreg.thin(model, p=0.5, k=5, example_inputs=torch.randn(4, 8))
        >>> report["0"].kept, report.masked_share, report.cycle_share
        (32, 0.5, 0.6)
    """

    entries: Mapping[str, ThinEntry]
    overrides: Sequence[AttributeOverride]
    k: int
    flops: tuple[int, int]
    signature: Mapping[str, str]
    dropouts: Sequence[str] = ()

    def __getitem__(self, name: str) -> ThinEntry:
        if name not in self.entries:
            raise KeyError(f"no group {name!r}; there is: {quoted(self.entries)}")
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def masked_share(self) -> float:
        """FLOPs of a masked step over those of a plain one, forward and backward."""
        masked, plain = self.flops
        return masked / plain if plain else 1.0

    @property
    def cycle_share(self) -> float:
        """FLOPs of a cycle over those of k plain steps."""
        return (1 + (self.k - 1) * self.masked_share) / self.k

    @property
    def groups(self) -> list[ThinEntry]:
        """Groups that lose units."""
        return [entry for entry in self.values() if entry.admitted]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file, for `ThinReport.load`."""
        torch.save(vars(self), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ThinReport":
        """Read a report that `save` wrote, without running code from the file."""
        with torch.serialization.safe_globals([ThinEntry, Slot, Block, AttributeOverride]):
            return cls(**torch.load(path, weights_only=True))

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        lines = [f"{'group':{width}}  {'kind':8}  {'outcome':8}  {'units':>6}  {'kept':>6}  parameters, or the reason"]
        for name, entry in self.items():
            told = ", ".join(f"{s.name}[{s.dim}]" for s in entry.slots if s.role != "member")
            told = entry.reason or told or ", ".join(block.name for block in entry.blocks)
            units, kept = (entry.units, entry.kept) if entry.kind != "none" else ("", "")
            lines.append(f"{name:{width}}  {entry.kind:8}  {entry.outcome:8}  {units:>6}  {kept:>6}  {told}")
        return "\n".join([self.summary(), "", *lines])

    def summary(self) -> str:
        """Say in at most six lines what is computed, what loses units, and what to look at."""
        counts = Counter((e.outcome, f"{e.kind} (p={e.p:g})") for e in self.values() if e.admitted)
        told = {word: [f"{n} of {kind}" for (each, kind), n in counts.items() if each == word] for word, _ in counts}
        lines = [
            f"{sum(counts.values())} of {len(self)} groups lose units: a masked step computes {self.masked_share:.0%} "
            f"of a plain step's FLOPs{f', a cycle of {self.k} steps {self.cycle_share:.0%}' if self.k > 1 else ''}."
        ]
        if "left out" in told:
            lines.append(f"left out: {', '.join(told['left out'])}")
        if "zeroed" in told:
            why = [f", since {entry.reason}" for entry in self.values() if entry.zeroed][:1]
            lines.append(f"zeroed: {', '.join(told['zeroed'])}: computed all the same{''.join(why)}")
        if self.masked_share > LITTLE:
            lines.append("Little is saved: most is computed whole, or p is small.")
        if self.dropouts:
            lines.append(f"dropout that is still on: {quoted(self.dropouts)}")
        return "\n".join(lines)


def signature(model: nn.Module) -> dict[str, str]:
    """Return what groups depend on, by name: shapes of tensors, classes of modules and their integer attributes."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    found = {name: f"shape {tuple(tensor.shape)}" for name, tensor in tensors}
    for path, module in model.named_modules():
        counts = {name: value for name, value in sorted(vars(module).items()) if type(value) is int and name[0] != "_"}
        found[path] = " ".join([type(module).__qualname__, *(f"{name}={value}" for name, value in counts.items())])
    return found


def fitting(model: nn.Module, plan: ThinReport, k: int) -> ThinReport:
    """Return a plan for k steps per cycle, if it is one for this model."""
    check_type(WHERE, "plan", plan, ThinReport, "the ThinReport of an earlier call")
    here = signature(model)
    differing = [name for name in dict.fromkeys((*plan.signature, *here)) if plan.signature.get(name) != here.get(name)]
    if differing:
        found = {
            name or type(model).__name__: f"{plan.signature.get(name, 'nothing')}, here {here.get(name, 'nothing')}"
            for name in differing[:SHOWN]
        }
        remedy = f"In all {len(differing)} differ. Give example_inputs instead, to search again."
        raise invalid_argument(ValueError, WHERE, "plan", "one for this model", found, remedy)
    return replace(plan, k=k)
