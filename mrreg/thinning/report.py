"""Report of `thin`: the groups of a model, which are dropped and which are refused and why, and the saving."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mrreg.errors import quoted
from mrreg.masks.groups import AttributeOverride, Block, BlockCall, Slot, UnitGroup

LITTLE = 0.85  # of a plain step's FLOPs: a masked step that computes more saves too little to go without a reason
SHOWN = 3  # modules named in that reason
MANY_CHANNELS = 0.25  # a share of them whose absence cost small convolutional networks accuracy (docs/when-it-helps.md)


@dataclass(frozen=True)
class ThinEntry:
    """One group of units, or channels that cannot be one.

    Args:
        kind: "hidden", "heads", "channels", "inputs", "stream" or "blocks"; "none" where the channels form no group.
        units: Number of units.
        kept: Number of units present on a masked step; all of them where none is dropped.
        slots: The places in parameters and buffers where entries of the units lie.
        admitted: True if units are dropped.
        reason: Obstacle, if none is dropped; of units that are zeroed, the obstacle to leaving them out.
        blocks: The units, if they are blocks.
        zeroed: True if absent units are computed, and the columns that read them are zero: that regularizes as leaving
            them out does, and saves nothing.
    """

    kind: str
    units: int
    kept: int
    slots: tuple[Slot, ...]
    admitted: bool
    reason: str
    blocks: tuple[Block, ...] = ()
    zeroed: bool = False


class ThinReport(Mapping[str, ThinEntry]):
    """What `thin` found in a model: a mapping from the names of groups to entries, and the FLOPs of a masked step.

    An entry has a `kind`, the numbers of `units` and of `kept` ones, and the `reason` if none is dropped. `thin` and
    `load` make reports; `print(report)` shows all of it.

    Args:
        entries: Groups and refused channels, by name.
        overrides: Integer attributes of modules that change on masked steps.
        k: Steps per cycle.
        flops: FLOPs of a masked and of a plain step, forward and backward.
        unchanged: Modules that a masked step computes whole, with their shares of a plain step's FLOPs.
        signature: Shapes and classes of the model's parts, by name, by which a plan knows its model.

    Example:
        >>> import mrreg, torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> _, report = mrreg.thin(model, p=0.5, k=5, example_inputs=torch.randn(4, 8))
        >>> report["0"].kept, report.masked_share, report.cycle_share
        (32, 0.5, 0.6)
    """

    def __init__(
        self,
        entries: Mapping[str, ThinEntry],
        overrides: Sequence[AttributeOverride],
        k: int,
        flops: tuple[int, int],
        unchanged: Mapping[str, float],
        signature: Mapping[str, str],
    ) -> None:
        self._entries, self.overrides, self.k = dict(entries), tuple(overrides), k
        self.flops, self._unchanged, self.signature = flops, dict(unchanged), dict(signature)

    def __getitem__(self, name: str) -> ThinEntry:
        if name not in self._entries:
            raise KeyError(f"no group {name!r}; there is: {quoted(self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

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
    def groups(self) -> list[UnitGroup]:
        """Groups that lose units."""
        return [
            UnitGroup(n, e.kind, e.units, e.kept, e.slots, e.blocks, e.zeroed) for n, e in self.items() if e.admitted
        ]  # type: ignore[arg-type]

    def with_k(self, k: int) -> "ThinReport":
        """The same outcome for another number of steps per cycle."""
        return ThinReport(self._entries, self.overrides, k, self.flops, self._unchanged, self.signature)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file, for `ThinReport.load`.

        Args:
            path: File to write.
        """
        entries = {
            name: {
                **vars(entry),
                "slots": list(map(_slot_state, entry.slots)),
                "blocks": [{**vars(block), "calls": list(map(vars, block.calls))} for block in entry.blocks],
            }
            for name, entry in self.items()
        }
        state = {
            "entries": entries,
            "overrides": [vars(each) for each in self.overrides],
            "k": self.k,
            "flops": list(self.flops),
            "unchanged": self._unchanged,
            "signature": self.signature,
        }
        torch.save(state, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ThinReport":
        """Read a report that `save` wrote, without running code from the file.

        Args:
            path: File to read.
        """
        state: dict[str, Any] = torch.load(path, weights_only=True)
        entries = {}
        for name, entry in state["entries"].items():
            slots = tuple(Slot(**slot) for slot in entry["slots"])
            blocks = tuple(
                Block(**{**block, "calls": tuple(BlockCall(**call) for call in block["calls"])})
                for block in entry.get("blocks", ())
            )
            entries[name] = ThinEntry(**{**entry, "slots": slots, "blocks": blocks})
        overrides = [AttributeOverride(**each) for each in state["overrides"]]
        return cls(entries, overrides, state["k"], tuple(state["flops"]), state["unchanged"], state["signature"])

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        lines = [f"{'group':{width}}  {'kind':8}  {'units':>6}  {'kept':>6}  parameters, or why none is dropped"]
        for name, entry in self.items():
            told = ", ".join(f"{s.name}[{s.dim}]" for s in entry.slots if s.role != "member")
            told = told or ", ".join(block.name for block in entry.blocks)
            told = f"zeroed, for if they are left out: {entry.reason}" if entry.zeroed else entry.reason or told
            units, kept = (entry.units, entry.kept) if entry.kind != "none" else ("", "")
            lines.append(f"{name:{width}}  {entry.kind:8}  {units:>6}  {kept:>6}  {told}")
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        """Say how many FLOPs are computed, why where little is saved, and where fewer units should be absent."""
        dropped = sum(entry.admitted for entry in self.values())
        text = (
            f"{dropped} of {len(self)} groups lose units: a masked step computes {self.masked_share:.0%} of a plain "
            f"step's FLOPs, a cycle of {self.k} steps {self.cycle_share:.0%}."
        )
        if self.masked_share > LITTLE:
            largest = sorted(self._unchanged.items(), key=lambda item: -item[1])[:SHOWN]
            parts = ", ".join(f"{name or 'the model itself'} {share:.0%}" for name, share in largest)
            why = f"computed whole: {parts}" if parts else "p is small"
            text += f" Little is saved; {why}."
        if any(e.kind == "channels" and e.units - e.kept > MANY_CHANNELS * e.units for e in self.values()):
            text += " Small convolutional networks did best with about an eighth of the channels absent."
        return text


def _slot_state(slot: Slot) -> dict[str, str | int | Tensor]:
    return {"name": slot.name, "dim": slot.dim, "indices": slot.indices, "role": slot.role, "size": slot.size}
