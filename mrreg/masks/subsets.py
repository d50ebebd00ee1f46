"""The units and entries that masks draw, in words and numbers, for reports and plots; nothing is drawn by asking."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mrreg.masks.module import MultirateMask
from mrreg.masks.sampling import draw_units, fill_bits
from mrreg.module_utils import join, parameter

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Subset:
    """One draw of a mask: of units that are absent together, or of the single entries of a parameter.

    Args:
        name: Path of the parameter, or of the layer that has the units.
        kind: "entries", "units", or what the units are.
        units: How many units or entries there are.
        present: How many are present on a masked step; of single entries, the expected number.
        index: Position among the draws of the model.
        p: Probability or share of being absent.
    """

    name: str
    kind: str
    units: int
    present: float
    index: int
    p: float

    def drawn(self, seed: int, cycle: int, shown: int) -> Tensor:
        """Return True for each of the first `shown` units or entries that is present on the masked steps of a cycle."""
        key = seed, self.index, cycle
        if self.kind == "entries":
            bits = fill_bits(torch.empty(min(self.units, shown), dtype=torch.int32), key, self.p)
        else:
            bits = draw_units(key, self.p, self.units, CPU)[:shown]
        return bits != 0


def masks_in(model: nn.Module) -> Iterator[tuple[str, MultirateMask, int]]:
    """Yield the masks of a model in the order of `attach`: path, mask, index of its first draw."""
    first = 0
    for name, module in model.named_modules():
        if isinstance(module, MultirateMask):
            yield name, module, first
            first += len(module.targets)


def subsets_of(name: str, mask: MultirateMask, first: int) -> list[Subset]:
    """Return what a mask draws; `name` is its path, `first` the index of its first draw."""
    p, found = mask._drawn_p if mask._drawn else mask.p, {}
    for index, target in enumerate(mask.targets, first):
        if target.layout is None:
            units = parameter(mask.module, target.name).numel()
            found[target.name] = Subset(join(name, target.name), "entries", units, (1 - p) * units, index, p)
        elif target.group not in found:
            units = target.layout.units
            path = ".".join(filter(None, (name, target.name.rpartition(".")[0])))
            found[target.group] = Subset(path, "units", units, units - round(p * units), index, p)
    return list(found.values())


def entries_of(mask: MultirateMask) -> tuple[int, float]:
    """Return how many entries the masked parameters have, and how many are present on a masked step."""
    total, present = 0, 0.0
    for target in mask.targets:
        entries, p = parameter(mask.module, target.name).numel(), mask._drawn_p if mask._drawn else mask.p
        if target.layout is not None:
            p = round(p * target.layout.units) / target.layout.units
        total, present = total + entries, present + entries * (1 - p)
    return total, present
