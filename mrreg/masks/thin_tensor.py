"""Parameters and buffers that hold units of a thin model: their kept entries, and what stands for them in a forward."""

from collections.abc import Mapping
from math import prod
from typing import Any

from torch import Tensor, nn

from mrreg.errors import invalid_argument
from mrreg.masks.kept_entries import KeptUnits
from mrreg.masks.slots import UnitGroup

WHERE = "thin"


class ThinTensor(KeptUnits):
    """One parameter or buffer that holds units.

    Args:
        name: Its dotted name.
        cuts: For each dimension that counts units the group and the positions of each unit, (units, entries).
        scale: Factor of the kept entries in masked forwards.
        block: The group and the number of the block that it belongs to, if it does to one.
        computed: Dimensions of `cuts` along which forwards read everything, and an optimizer sees what is kept.
    """

    def __init__(
        self,
        name: str,
        cuts: Mapping[int, tuple[UnitGroup, Tensor]],
        scale: float,
        block: tuple[UnitGroup, int] | None = None,
        computed: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(scale)
        self.computed = computed
        self._shown = KeptUnits(scale, self.gradients) if computed else self  # what forwards read
        self.name, self.cuts, self.block = name, cuts, block
        self.off = False  # all of it is absent, with its block
        self.is_buffer = False  # in the model, whatever functional_call puts in its place

    @property
    def has_absent(self) -> bool:
        """True if entries are absent in this cycle."""
        return self.off or bool(self.cuts)

    @property
    def share(self) -> float:
        """Share of the entries that is present on masked steps, on average over cycles."""
        groups = [group for group, _ in self.cuts.values()] + ([self.block[0]] if self.block else [])
        return prod(group.kept / group.units for group in groups)

    def of(self, model: nn.Module) -> Tensor:
        """Return the parameter or buffer of this name in a model."""
        path, _, leaf = self.name.rpartition(".")
        module = model.get_submodule(path)
        parameters, buffers = (own_table(module, kind) for kind in ("_parameters", "_buffers"))
        found: Tensor = (parameters if leaf in parameters else buffers)[leaf]
        return found

    def misfit(self, model: nn.Module) -> str:
        """Say how a model no longer has this tensor; nothing if it does."""
        try:
            shape = self.of(model).shape
        except (AttributeError, KeyError):
            return f"{self.name!r} is gone"
        sizes = {dim: positions.numel() for dim, (_, positions) in self.cuts.items()}
        wrong = [dim for dim, size in sizes.items() if shape[dim : dim + 1] != (size,)]
        return f"{self.name!r} has {tuple(shape)}, not {sizes[wrong[0]]} in dimension {wrong[0]}" if wrong else ""

    def draw(self, kept: Mapping[str, Tensor], value: Tensor) -> None:
        """Take over the kept units of each group."""
        self.is_buffer = not isinstance(value, nn.Parameter)
        if self.block is not None:
            group, number = self.block
            self.off = number not in kept[group.name]
        if self.cuts:
            cuts = self.cuts.items()
            along = {dim: positions[kept[group.name]].flatten().sort().values for dim, (group, positions) in cuts}
            self.keep(along, value)
            if self.computed:
                self._shown.keep({dim: kept for dim, kept in along.items() if dim not in self.computed}, value)

    def gather(self, value: Tensor) -> Tensor:
        """Return the tensor that takes the place of the parameter or buffer in a masked forward."""
        if self.computed:
            if len(self.computed) == len(self.cuts):
                return value
            return self.widened(self._shown.gather(value), value)
        return self.widened(super().gather(value), value)

    def widened(self, small: Tensor, value: Tensor) -> Tensor:
        """Return kept entries along with absent ones, at zero, where what is around the layer comes or goes whole."""
        for dim, (group, _) in self.cuts.items():
            if group.keeps_shape and dim not in self.computed:
                shape = [*small.shape[:dim], value.shape[dim], *small.shape[dim + 1 :]]
                small = small.new_zeros(shape).index_copy(dim, self._kept[dim].to(small.device), small)
        return small


def own_table(module: nn.Module, kind: str) -> Any:
    """Return the `_parameters` or `_buffers` of a module, also while another table stands for it."""
    table = module.__dict__[kind]
    return getattr(table, "own", table)


def tensors_of(groups: tuple[UnitGroup, ...], rescale: bool) -> dict[str, ThinTensor]:
    """Collect the slots of groups that lose units, for each parameter and buffer."""
    cuts: dict[str, dict[int, tuple[UnitGroup, Tensor]]] = {}
    scales: dict[str, float] = {}
    computed: dict[str, set[int]] = {}
    blocks = {name: (g, i) for g in groups for i, block in enumerate(g.blocks) for name in block.parameters}
    for group in groups:
        for slot in group.slots if group.kept < group.units else ():
            if slot.dim in cuts.setdefault(slot.name, {}):
                raise invalid_argument(
                    ValueError, WHERE, "groups", f"one for dimension {slot.dim} of {slot.name!r}", group.name
                )
            cuts[slot.name][slot.dim] = group, slot.indices
            if group.zeroed and slot.role != "consumer":
                computed.setdefault(slot.name, set()).add(slot.dim)
            factor = group.units / group.kept if rescale and slot.role == "consumer" else 1.0
            scales[slot.name] = scales.get(slot.name, 1.0) * factor
    names = dict.fromkeys([*cuts, *blocks])
    return {
        name: ThinTensor(
            name, cuts.get(name, {}), scales.get(name, 1.0), blocks.get(name), frozenset(computed.get(name, ()))
        )
        for name in names
    }
