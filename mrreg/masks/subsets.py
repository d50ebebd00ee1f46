"""The units and entries that masks draw, in words and numbers, for reports and plots; nothing is drawn by asking."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mrreg.masks.layer_mask import LayerMask
from mrreg.masks.sampling import draw_kept, fill_bits
from mrreg.masks.thin_mask import ThinMask, masks_of
from mrreg.module_utils import join, parameter

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Subset:
    """One draw of a mask: of units that are absent together, or of the single entries of a parameter.

    Args:
        name: Path of the layer that has the units, or of the parameter.
        kind: Kind of the units; empty for single entries.
        units: Number of units or entries.
        present: Number that is present on a masked step; of single entries, the expected number.
        index: Position among the draws of the model.
    """

    name: str
    kind: str
    units: int
    present: float
    index: int

    def drawn(self, seed: int, cycle: int, shown: int) -> Tensor:
        """Return True for each of the first `shown` units or entries that is present on the masked steps of a cycle."""
        key = seed, self.index, cycle
        if not self.kind:
            entries = torch.empty(min(self.units, shown), dtype=torch.int32)
            return fill_bits(entries, key, 1 - self.present / self.units) != 0
        present = torch.zeros(self.units, dtype=torch.bool)
        present[draw_kept(key, int(self.present), self.units, CPU)] = True
        return present[:shown]


def masks_in(model: nn.Module) -> Iterator[tuple[str, ThinMask, int]]:
    """Yield the masks of a model in the order of `attach`: path, mask, index of its first draw."""
    first = 0
    for name, module in model.named_modules():
        for mask in masks_of(module):
            yield name, mask, first
            first += mask.draws()


def subsets_of(name: str, mask: ThinMask, first: int) -> list[Subset]:
    """Return the subsets that a mask draws; `name` is its path, `first` the index of its first draw."""
    if not isinstance(mask, LayerMask):
        return [
            Subset(join(name, group.name), group.kind, group.units, group.kept, index)
            for index, group in enumerate(mask.groups, first)
        ]
    p, found = _probability(mask), {}
    for index, target in enumerate(mask.targets, first):
        if target.layout is None:
            entries = parameter(mask.root(), target.name).numel()
            found[target.name] = Subset(join(name, target.name), "", entries, (1 - p) * entries, index)
        elif target.group not in found:
            units, layer = target.layout.units, target.name.rpartition(".")[0]
            path = join(name, layer) if layer else name
            found[target.group] = Subset(path, mask.structure, units, units - round(p * units), index)
    return list(found.values())


def entries_of(mask: ThinMask) -> tuple[int, float]:
    """Return the number of entries of the masked parameters, and of those present on a masked step."""
    total, present = 0, 0.0
    for name, value in mask.masked_parameters():
        total, present = (
            total + value.numel(),
            present + value.numel() * (mask.tensors[name].share if name in mask.tensors else 1),
        )
    return total, present


def _probability(mask: LayerMask) -> float:
    """Return the p of the draw that holds now; the user may have set another for the next cycle."""
    return float(mask.drawn[-1]) if mask.drawn else mask.p
