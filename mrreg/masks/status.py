"""The subsets that masks draw, and where an attachment's masks are in their cycles: in words, and as numbers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.masks.clock import CLOCK
from mrreg.masks.mask import Mask, masks_of
from mrreg.masks.sampling import draw_units, fill_bits
from mrreg.module_utils import join


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
        key, p, cpu = (seed, self.index, cycle), 1 - self.present / self.units, torch.device("cpu")
        if self.kind:
            return draw_units(key, p, self.units, cpu)[:shown] != 0
        return fill_bits(torch.empty(min(self.units, shown), dtype=torch.int32, device=cpu), key, p) != 0


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
        if target.dim is None:
            entries = mask.tensors[target.name].of(mask.root()).numel()
            found[target.name] = Subset(join(name, target.name), "", entries, (1 - p) * entries, index)
        elif target.group not in found:
            units, layer = target.units, target.name.rpartition(".")[0]
            path = join(name, layer) if layer else name
            found[target.group] = Subset(path, mask.structure, units, units - round(p * units), index)
    return list(found.values())


Position = tuple[dict[str, float], list[str]]  # of masks with one optimizer and k: numbers, and lines to print


def positions(step_hooks: Iterable[Any]) -> list[Position]:
    """Return the positions of all masks, by optimizer and by the length of their cycle."""
    return [
        _position(hooks, optimizer, k)
        for hooks in step_hooks
        if (optimizer := hooks.optimizer()) is not None
        for k in dict.fromkeys(mask.k for mask in hooks.masks)
    ]


def _position(hooks: Any, optimizer: Any, k: int) -> Position:
    masks: list[Mask] = [mask for mask in hooks.masks if mask.k == k]
    found = [(mask, mask.tensors[name], p) for mask in masks for name, p in mask.masked_parameters()]
    entries = sum(p.numel() for *_, p in found)
    present = sum(tensor.present(p) if mask.masking else p.numel() for mask, tensor, p in found)
    boosts = dict.fromkeys(mask.boost_of(p) for mask, _, p in found if hooks.joint)
    clock = optimizer.param_groups[0][CLOCK]
    cycle, phase = divmod(clock, k)
    wait = k - 1 - phase
    numbers = {"step": clock, "cycle": cycle, "phase": phase, "k": k, "present": present / entries if entries else 1.0}
    numbers |= hooks.timer.medians() if any(mask.p > 0 for mask in masks) else {}
    numbers["boost"] = max((boost for boost, _ in boosts), default=1.0)
    if hooks.joint:
        numbers["steps_to_joint"] = wait
    if flops := [(mask.flops[not mask.masking], mask.flops[1]) for mask in masks if mask.flops]:
        numbers["flops"] = sum(now for now, _ in flops) / sum(plain for _, plain in flops)
    if not entries:
        return numbers, []
    joint = f"the joint step comes {f'after {wait} more' if wait else 'next'}" if hooks.joint else "no joint step"
    lines = [
        f"  {type(optimizer).__name__}, {clock} steps done: cycle {cycle + 1}, step {phase + 1} of {k}, "
        f"{numbers['present']:.0%} of {entries:,} masked entries present, {joint}"
    ]
    lines += [f"    boost {boost:g}: {why}" for boost, why in boosts]
    known = [kind for kind in ("joint", "masked") if f"{kind}_seconds" in numbers]
    if len(known) == 1 + hooks.joint:
        lines.append("    " + ", ".join(f"{kind} steps take {numbers[f'{kind}_seconds']:.3g} s" for kind in known))
    for each in (subset for mask in masks for subset in subsets_of(mask.path, mask, mask.first)):
        what = f"units ({each.kind})" if each.kind else "entries"
        name = each.name or "the model itself"
        lines.append(f"    {name}: {each.present:,.0f} of {each.units:,} {what} on masked steps")
    return numbers, lines
