"""The position of an attachment's masks in their cycles, in words and as numbers for a logger."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mrreg.masks.mask_clock import CLOCK
from mrreg.masks.step_hooks import MaskStepHooks
from mrreg.masks.subsets import Subset, entries_of, subsets_of
from mrreg.masks.thin_mask import ThinMask

PREFIX = "mask"


@dataclass(frozen=True)
class Position:
    """Masks that one optimizer drives in cycles of one length.

    Args:
        optimizer: Class of the optimizer.
        clock: Steps that it has completed.
        k: Steps per cycle.
        subsets: Draws of the masks.
        entries: Entries of the masked parameters.
        present: Number of these that are present in the next training forward.
        flops: FLOPs of that forward and its backward, and those of a plain one, where thin models know them.
    """

    optimizer: str
    clock: int
    k: int
    subsets: list[Subset]
    entries: int
    present: float
    flops: tuple[int, int]

    @property
    def share(self) -> float:
        """Share of the masked entries that is present."""
        return self.present / self.entries if self.entries else 1.0

    def numbers(self) -> dict[str, float]:
        """Return the numbers of `Attachment.state`."""
        cycle, phase = divmod(self.clock, self.k)
        return {
            "step": self.clock,
            "cycle": cycle,
            "phase": phase,
            "k": self.k,
            "steps_to_joint": self.k - 1 - phase,
            "present": self.share,
        } | ({"flops": self.flops[0] / self.flops[1]} if self.flops[1] else {})

    def lines(self) -> Iterator[str]:
        """Yield the lines that `print` shows."""
        cycle, phase = divmod(self.clock, self.k)
        wait = self.k - 1 - phase
        joint = "next" if wait == 0 else f"after {wait} more"
        share = f"{self.share:.0%} of {self.entries:,} masked entries present"
        yield (
            f"  {self.optimizer}, {self.clock} steps done: cycle {cycle + 1}, step {phase + 1} of {self.k}, {share}, "
            f"the joint step comes {joint}"
        )
        for each in self.subsets:
            counts = f"{each.present:,.0f} of {each.units:,} {f'units ({each.kind})' if each.kind else 'entries'}"
            yield f"    {each.name or 'the model itself'}: {counts} on masked steps"


def positions(step_hooks: Iterable[MaskStepHooks], names: Mapping[int, str]) -> Iterator[Position]:
    """Yield the positions of all masks, by optimizer and by the length of their cycle; `names` has paths by id."""
    for hooks in step_hooks:
        optimizer: Any = hooks.optimizer()
        for k in dict.fromkeys(mask.k for mask, _ in hooks.masks) if optimizer is not None else ():
            masks = [(mask, first) for mask, first in hooks.masks if mask.k == k]
            yield _position(optimizer, k, masks, names)


def _position(optimizer: Any, k: int, masks: list[tuple[ThinMask, int]], names: Mapping[int, str]) -> Position:
    counts = [(entries_of(mask), mask.masking) for mask, _ in masks]
    flops = [(mask.flops, mask.masking) for mask, _ in masks if mask.flops]
    return Position(
        optimizer=type(optimizer).__name__,
        clock=optimizer.param_groups[0][CLOCK],
        k=k,
        subsets=[subset for mask, first in masks for subset in subsets_of(names[id(mask)], mask, first)],
        entries=sum(total for (total, _), _ in counts),
        present=sum(present if masking else total for (total, present), masking in counts),
        flops=(sum(both[not masking] for both, masking in flops), sum(plain for (_, plain), _ in flops)),
    )


def describe(found: Iterable[Position]) -> str:
    """Return the text that `print` shows for an attachment."""
    lines = [line for each in found for line in each.lines()]
    return "\n".join(["Attachment (", *lines, ")"]) if lines else "Attachment (drives nothing)"


def collect_state(found: Iterable[Position]) -> dict[str, float]:
    """Return the numbers of all positions; several of them are numbered."""
    each = [position.numbers() for position in found]
    prefixes = [PREFIX] if len(each) == 1 else [f"{PREFIX}{i}" for i in range(len(each))]
    return {f"{p}/{key}": value for p, numbers in zip(prefixes, each, strict=True) for key, value in numbers.items()}
