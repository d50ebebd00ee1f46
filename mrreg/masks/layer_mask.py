"""The mask of one module whose parameters are named: entries or units of them, all drawn with the same p."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.masks.groups import Slot, UnitGroup
from mrreg.masks.mask import Mask
from mrreg.masks.options import CHANGEABLE, WHERE
from mrreg.masks.targets import MaskTarget
from mrreg.masks.tensors import ZeroedTensor, tensors_of
from mrreg.module_utils import parameter, rebuild_attributes


class LayerMask(Mask):
    """A mask whose share `p` may change at any time; the next cycle is drawn with it.

    Args:
        module: The module.
        targets: What is drawn in which of its parameters.
        structure: Kind of draw.
        p: Share of what is drawn that is absent.
        k, boost, rescale: As in `Mask`.
    """

    p = 0.0  # type: ignore[assignment]

    def __init__(
        self,
        module: Any,
        targets: Iterable[MaskTarget],
        structure: str,
        p: float,
        k: int,
        boost: float | None,
        rescale: bool,
    ) -> None:
        self.targets, self.structure = list(targets), structure
        group = _hidden_group(module, self.targets) if module is not None else None
        self._start(module, [group] if group else [], p, k, boost, rescale)

    def _start(self, module: Any, groups: Any, p: float, k: int, boost: float | None, rescale: bool) -> None:
        self.p = p
        super().__init__(module, self._resized(groups), (), k, boost, rescale, where=WHERE)
        self.fixed = False
        self._single = [] if self.groups else [ZeroedTensor(target, p) for target in self.targets]
        self.tensors.update({each.name: each for each in self._single})

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, CHANGEABLE[name](value) if name in CHANGEABLE else value)

    def _resized(self, groups: Iterable[UnitGroup]) -> tuple[UnitGroup, ...]:
        """Return groups that lose the share p of their units; one stays."""
        return tuple(replace(each, kept=max(each.units - round(self.p * each.units), 1)) for each in groups)

    def masked_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that are or may be masked."""
        return ((target.name, parameter(self.root(), target.name)) for target in self.targets)

    def detach(self) -> None:
        """Become dense and undriven, also in what hooks compute from the parameters."""
        super().detach()
        self.rebuild()

    def rebuild(self) -> None:
        """Compute again what hooks of torch.nn.utils on the module have made of its parameters."""
        if (module := self._model()) is not None:
            rebuild_attributes(module.modules())

    def forget(self) -> None:
        """Hold nothing, whatever still drives the mask."""
        self.p = 0.0
        super().forget()

    def __str__(self) -> str:
        """Return the options for `print(model)`."""
        return f"mask(p={self.p}, k={self.k}, structure={self.structure!r}, boost={self.boost}, rescale={self.rescale})"

    def draws(self) -> int:
        """Return the number of subsets that are drawn, each with an index of its own."""
        return len(self.targets)

    def _draw(self, seed: int, first: int, cycle: int) -> None:
        if self.groups:
            self.groups = self._resized(self.groups)
            self.tensors = dict(tensors_of(self.groups, self.rescale))
            return super()._draw(seed, first, cycle)
        model, keys = self.root(), {}
        for index, tensor in enumerate(self._single, first):
            key = keys.setdefault(tensor.target.group, (seed, index, cycle))
            tensor.draw(key, self.p, self.rescale, tensor.of(model))
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild_layer_mask, (
            *(self.targets, self.structure, self.groups, self.p, self.k, self._boost, self.rescale),
        )


def rebuild_layer_mask(
    targets: Any, structure: str, groups: Any, p: float, k: int, boost: float | None, rescale: bool
) -> LayerMask:
    """Return a copy of a mask, which nothing drives; its module gives itself in."""
    mask = LayerMask.__new__(LayerMask)
    mask.targets, mask.structure = targets, structure
    mask._start(None, groups, p, k, boost, rescale)
    return mask


def _hidden_group(module: nn.Module, targets: list[MaskTarget]) -> UnitGroup | None:
    """Return the units between two layers as a group, whose absent units are not computed, where that can be."""
    if any(target.group != "hidden" or target.layout is None for target in targets) or not _shrinks(module):
        return None
    slots = []
    for target in targets:
        assert target.layout is not None
        role: Any = "consumer" if target.rescaled else "producer" if target.layout.dim == 0 else "member"
        slots.append(Slot(target.name, target.layout.dim, torch.arange(target.layout.units)[:, None], role))
    units = slots[0].indices.shape[0]
    return UnitGroup("hidden", "hidden", units, units, tuple(slots))


def _shrinks(module: nn.Module) -> bool:
    """Tell if smaller tensors can stand in for a module's parameters: nothing in it ties channels together."""
    for inner in module.modules():
        if vars(inner).get("groups", 1) != 1 or (isinstance(inner, nn.PReLU) and inner.num_parameters > 1):
            return False
    return True
