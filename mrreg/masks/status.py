"""The subsets that masks draw, and where an attachment's masks are in their cycles: in words, and as numbers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.masks.clock import CLOCK
from mrreg.masks.mask import Mask, masks_of
from mrreg.masks.sampling import draw_kept, fill_bits
from mrreg.module_utils import join

PREFIX = "mask"


@dataclass(frozen=True)
class Subset:
    """One draw of a mask: of units that are absent together, or of the single entries of a parameter."""

    name: str  # path of the layer that has the units, or of the parameter
    kind: str  # of the units; empty for single entries
    units: int  # or entries
    present: float  # number on a masked step; of single entries, the expected number
    index: int  # among the draws of the model

    def drawn(self, seed: int, cycle: int, shown: int) -> Tensor:
        """Return True for each of the first `shown` units or entries that is present on the masked steps of a cycle."""
        key = seed, self.index, cycle
        if not self.kind:
            entries = torch.empty(min(self.units, shown), dtype=torch.int32, device="cpu")
            return fill_bits(entries, key, 1 - self.present / self.units) != 0
        present = torch.zeros(self.units, dtype=torch.bool, device="cpu")
        present[draw_kept(key, int(self.present), self.units, present.device)] = True
        return present[:shown]


def masks_in(model: nn.Module) -> Iterator[tuple[str, Mask, int]]:
    """Yield the masks of a model in the order of `attach`: path, mask, index of its first draw."""
    first = 0
    for name, module in model.named_modules():
        for mask in masks_of(module):
            yield name, mask, first
            first += len(mask.groups) + len(mask.targets)


def subsets_of(name: str, mask: Mask, first: int) -> list[Subset]:
    """Return the subsets that a mask draws; `name` is its path, `first` the index of its first draw."""
    p = mask.drawn[-1] if mask.drawn else mask.p  # the user may have set another for the next cycle
    found = {
        group.name: Subset(join(name, group.name), group.kind, group.units, group.kept, index)
        for index, group in enumerate(mask.groups, first)
    }
    for index, target in enumerate(mask.targets, first + len(found)):
        if target.layout is None:
            entries = mask.tensors[target.name].of(mask.root()).numel()
            found[target.name] = Subset(join(name, target.name), "", entries, (1 - p) * entries, index)
        elif target.group not in found:
            units, layer = target.layout.units, target.name.rpartition(".")[0]
            path = join(name, layer) if layer else name
            found[target.group] = Subset(path, mask.structure, units, units - round(p * units), index)
    return list(found.values())


def entries_of(mask: Mask) -> tuple[int, float]:
    """Return the number of entries of the masked parameters, and of those present on a masked step."""
    counts = [(value.numel(), mask.tensors[name].share) for name, value in mask.masked_parameters()]
    return sum(count for count, _ in counts), sum(count * share for count, share in counts)


@dataclass(frozen=True)
class Position:
    """Masks that one optimizer drives in cycles of one length."""

    optimizer: str  # its class
    clock: int  # steps that it has completed
    k: int
    subsets: list[Subset]
    entries: int  # of the masked parameters
    present: float  # number of these in the next training forward
    flops: tuple[int, int]  # of that forward and its backward, and of plain ones, where thin models know them
    boosts: list[tuple[float, str]]  # factors of the slow step, each with its reason
    joint: bool  # the last step of a cycle has all present
    seconds: dict[str, float]  # medians of joint and of masked steps, as far as they are known

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
            "present": self.share,
            "boost": max((boost for boost, _ in self.boosts), default=1.0),
            **self.seconds,
            **({"steps_to_joint": self.k - 1 - phase} if self.joint else {}),
        } | ({"flops": self.flops[0] / self.flops[1]} if self.flops[1] else {})

    def lines(self) -> Iterator[str]:
        """Yield the lines that `print` shows."""
        cycle, phase = divmod(self.clock, self.k)
        wait = self.k - 1 - phase
        joint = f"the joint step comes {f'after {wait} more' if wait else 'next'}" if self.joint else "no joint step"
        share = f"{self.share:.0%} of {self.entries:,} masked entries present"
        yield (
            f"  {self.optimizer}, {self.clock} steps done: cycle {cycle + 1}, step {phase + 1} of {self.k}, {share}, "
            f"{joint}"
        )
        yield from (f"    boost {boost:g}: {why}" for boost, why in self.boosts)
        if len(self.seconds) == 2:
            yield "    joint steps take {joint_seconds:.3g} s, masked ones {masked_seconds:.3g} s".format(
                **self.seconds
            )
        for each in self.subsets:
            counts = f"{each.present:,.0f} of {each.units:,} {f'units ({each.kind})' if each.kind else 'entries'}"
            yield f"    {each.name or 'the model itself'}: {counts} on masked steps"


def positions(step_hooks: Iterable[Any], names: Mapping[int, str]) -> Iterator[Position]:
    """Yield the positions of all masks, by optimizer and by the length of their cycle; `names` has paths by id."""
    for hooks in step_hooks:
        optimizer: Any = hooks.optimizer()
        for k in dict.fromkeys(mask.k for mask, _ in hooks.masks) if optimizer is not None else ():
            masks = [(mask, first) for mask, first in hooks.masks if mask.k == k]
            counts = [(*entries_of(mask), mask.masking) for mask, _ in masks]
            flops = [(mask.flops, mask.masking) for mask, _ in masks if mask.flops]
            yield Position(
                optimizer=type(optimizer).__name__,
                clock=optimizer.param_groups[0][CLOCK],
                k=k,
                subsets=[subset for mask, first in masks for subset in subsets_of(names[id(mask)], mask, first)],
                entries=sum(total for total, *_ in counts),
                present=sum(present if masking else total for total, present, masking in counts),
                boosts=list(
                    dict.fromkeys(m.boost_of(p) for m, _ in masks if hooks.joint for _, p in m.masked_parameters())
                ),
                joint=hooks.joint,
                flops=(sum(both[not masking] for both, masking in flops), sum(plain for (_, plain), _ in flops)),
                seconds=next((mask.timer.medians() for mask, _ in masks if mask.timer and k > 1 and mask.p > 0), {}),
            )


def describe(found: Iterable[Position]) -> str:
    """Return the text that `print` shows for an attachment."""
    lines = [line for each in found if each.entries for line in each.lines()]
    return "\n".join(["Attachment (", *lines, ")"]) if lines else "Attachment (drives nothing)"


def collect_state(found: Iterable[Position]) -> dict[str, float]:
    """Return the numbers of all positions; several of them are numbered."""
    each = [position.numbers() for position in found]
    prefixes = [PREFIX] if len(each) == 1 else [f"{PREFIX}{i}" for i in range(len(each))]
    return {f"{p}/{key}": value for p, numbers in zip(prefixes, each, strict=True) for key, value in numbers.items()}
