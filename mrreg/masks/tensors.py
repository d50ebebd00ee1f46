"""Parameters and buffers of a mask: which entries of them are present, and what stands for them in a forward."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mrreg.distributed.sharding import cut, is_sharded, local, window
from mrreg.errors import invalid_argument
from mrreg.masks.entries import KeptEntries, PresentEntries, ReusableBuffer, bits_dtype, gather, masked
from mrreg.masks.groups import Slot, UnitGroup
from mrreg.masks.sampling import Key, draw_bits, draw_units
from mrreg.masks.targets import MaskTarget
from mrreg.module_utils import parameter

WHERE = "thin"


class KeptUnits:
    """The units that a cycle keeps along dimensions of one parameter or buffer, and the memory of its gradient.

    Args:
        scale: Factor of the kept entries in masked forwards.
        gradients: Memory of the gradient, if it is not to be its own.
    """

    def __init__(self, scale: float | Tensor = 1.0, gradients: ReusableBuffer | None = None) -> None:
        self.scale = scale
        self.gradients = ReusableBuffer() if gradients is None else gradients
        self.kept: Mapping[int, Tensor] = {}
        self._traced: KeptEntries | None = None
        self._entries: dict[object, KeptEntries] = {}  # by shape and layout: a sharded parameter has two

    def keep(self, kept: Mapping[int, Tensor], value: Tensor) -> None:
        """Set the kept positions from now on: ascending indices along each dimension of which something is dropped."""
        self.kept, self._entries = kept, {}
        whole = torch.empty(value.shape, device="meta") if is_sharded(value) else value
        self._traced = KeptEntries(whole, kept, value.device)  # graphs have the indices as inputs

    def entries(self, value: Tensor) -> KeptEntries:
        """Return the positions of kept entries; of a sharded tensor, those in the part that this rank has."""
        if torch.compiler.is_compiling():
            return self._traced or KeptEntries(value, self.kept, value.device)
        sharded = is_sharded(value)
        size, start = window(value) if sharded else (value.shape, (0,) * value.dim())
        here: Tensor = value.to_local() if sharded else value  # type: ignore[attr-defined]
        key = here.shape, here.stride(), here.device, start
        found = self._entries.get(key)
        if found is None:
            kept = {}
            for dim, indices in self.kept.items():
                inside = (indices >= start[dim]) & (indices < start[dim] + size[dim])
                kept[dim] = indices[inside] - start[dim]
            found = self._entries[key] = KeptEntries(here, kept, here.device)
        return found

    def kept_shape(self, value: Tensor) -> torch.Size:
        """Return the shape of the kept entries, on all ranks together."""
        return torch.Size(self.kept[dim].numel() if dim in self.kept else size for dim, size in enumerate(value.shape))

    def gather(self, value: Tensor) -> Tensor:
        """Return the tensor that takes the place of a parameter or buffer in a masked forward."""
        return gather(value, self.entries(value), self.scale, self.gradients)


class Cut(NamedTuple):
    """The units of a group along a dimension of a tensor.

    Args:
        group: The group.
        slot: Where they lie.
        factor: Of what is kept of them in masked forwards.
    """

    group: UnitGroup
    slot: Slot
    factor: float

    @property
    def computed(self) -> bool:
        """True if forwards read everything, and an optimizer sees what is kept."""
        return (self.group.zeroed or self.group.kind == "inputs") and self.slot.role != "consumer"


class GatheredTensor(KeptUnits):
    """One parameter or buffer that holds units.

    Args:
        name: Its dotted name.
        cuts: The units along each dimension that counts some.
        block: The group and the number of the block that it belongs to, if it does to one.
    """

    def __init__(
        self, name: str, cuts: Mapping[int, Sequence[Cut]], block: tuple[UnitGroup, int] | None = None
    ) -> None:
        super().__init__()
        computed = any(cut.computed for each in cuts.values() for cut in each)
        self.shown = KeptUnits(gradients=self.gradients) if computed else self  # what forwards read
        self.name, self.cuts, self.block = name, cuts, block
        self.off = False  # all of it is absent, with its block
        self.is_buffer = False  # in the model, whatever functional_call puts in its place
        self._wide: dict[int, tuple[int, Tensor]] = {}  # sizes with zeros for absent units, and where the others lie

    @property
    def has_absent(self) -> bool:
        """True if entries are absent in this cycle."""
        return self.off or bool(self.cuts)

    @property
    def share(self) -> float:
        """Share of the entries that is present on masked steps, on average over cycles."""
        share = self.block[0].kept / self.block[0].units if self.block else 1.0
        for cuts in self.cuts.values():
            absent = (slot.indices.numel() * (1 - group.kept / group.units) for group, slot, _ in cuts)
            share *= 1 - sum(absent) / cuts[0].slot.length
        return share

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
        sizes = {dim: cuts[0].slot.length for dim, cuts in self.cuts.items()}
        wrong = [dim for dim, size in sizes.items() if shape[dim : dim + 1] != (size,)]
        return f"{self.name!r} has {tuple(shape)}, not {sizes[wrong[0]]} in dimension {wrong[0]}" if wrong else ""

    def draw(self, kept: Mapping[str, Tensor], value: Tensor) -> None:
        """Take over the kept units of each group."""
        self.is_buffer = not isinstance(value, nn.Parameter)
        if self.block is not None:
            group, number = self.block
            self.off = number not in kept[group.name]
        own, read = {}, {}
        scale: float | Tensor = 1.0
        for dim, cuts in self.cuts.items():
            present, seen, stays = torch.ones(3, value.shape[dim], dtype=torch.bool, device="cpu")
            factors = torch.ones(value.shape[dim], dtype=torch.float64, device="cpu")
            for each in cuts:
                absent = each.slot.indices[_others(kept[each.group.name], each.group.units)].flatten()
                factors[each.slot.indices.flatten()] = each.factor
                present[absent] = False
                seen[absent] = each.computed
                stays[absent] = each.group.keeps_shape
            own[dim], factors = present.nonzero().flatten(), factors[seen]
            if not seen.all():
                read[dim] = seen.nonzero().flatten()
            if (seen != stays).any():
                self._wide[dim] = int(stays.sum()), (stays.cumsum(0) - 1)[seen]
            if factors.min() == factors.max():
                scale = scale * float(factors[0])
            else:
                scale = scale * factors.to(value.device, value.dtype).view(-1, *[1] * (value.dim() - dim - 1))
        if self.cuts:
            if self.shown is not self:
                self.shown.keep(read, value)
            self.keep(own, value)
            self.scale = self.shown.scale = scale

    def gather(self, value: Tensor) -> Tensor:
        """Return the tensor that takes the place of the parameter or buffer in a masked forward."""
        if not self.shown.kept:
            return value
        small = KeptUnits.gather(self.shown, value)
        for dim, (size, where) in self._wide.items():
            shape = [*small.shape[:dim], size, *small.shape[dim + 1 :]]
            small = small.new_zeros(shape).index_copy(dim, where.to(small.device), small)
        return small


def _others(kept: Tensor, units: int) -> Tensor:
    return torch.ones(units, dtype=torch.bool, device="cpu").index_fill(0, kept, False)


def own_table(module: nn.Module, kind: str) -> Any:
    """Return the `_parameters` or `_buffers` of a module, also while another table stands for it."""
    table = module.__dict__[kind]
    return getattr(table, "own", table)


def tensors_of(groups: tuple[UnitGroup, ...], rescale: bool) -> dict[str, GatheredTensor]:
    """Collect the slots of groups that lose units, for each parameter and buffer."""
    cuts: dict[str, dict[int, list[Cut]]] = {}
    blocks = {name: (g, i) for g in groups for i, block in enumerate(g.blocks) for name in block.parameters}
    for group in groups:
        for slot in group.slots if group.kept < group.units else ():
            here = cuts.setdefault(slot.name, {}).setdefault(slot.dim, [])
            if any(torch.isin(cut.slot.indices, slot.indices).any() for cut in here):
                rule = f"one for each position along dimension {slot.dim} of {slot.name!r}"
                raise invalid_argument(ValueError, WHERE, "groups", rule, group.name)
            here.append(Cut(group, slot, group.units / group.kept if rescale and slot.role == "consumer" else 1.0))
    return {
        name: GatheredTensor(name, cuts.get(name, {}), blocks.get(name)) for name in dict.fromkeys([*cuts, *blocks])
    }


class ZeroedTensor:
    """One parameter whose absent entries stay in their places; it answers what a `GatheredTensor` does.

    Args:
        target: The parameter, and what is drawn together in it.
        p: Share of it that is absent.
    """

    off = is_buffer = False

    def __init__(self, target: MaskTarget, p: float) -> None:
        self.target, self.name, self.scale = target, target.name, 1.0
        self._set_p(p)
        self.gradients = ReusableBuffer()
        self._bits: dict[object, Tensor] = {}  # by the part of the parameter: a sharded one has two
        self._traced = torch.empty(0)

    has_absent = cuts = True

    def of(self, model: nn.Module) -> Tensor:
        """Return the parameter of this name in a model."""
        return parameter(model, self.name)

    def misfit(self, model: nn.Module) -> str:
        """Say how a model no longer has this parameter; nothing if it does."""
        self.of(model)
        return ""

    def draw(self, key: Key, p: float, rescale: bool, value: Tensor) -> None:
        """Draw what is absent from now on."""
        self.scale = 1 / (1 - p) if rescale and self.target.rescaled and p < 1 else 1.0
        self._key, self._bits = key, {}
        self._set_p(p)
        self._traced = self.bits(value)

    def _set_p(self, p: float) -> None:
        units = self.target.layout.units if self.target.layout else 0
        self._p, self.share = p, 1 - (round(p * units) / units if units else p)

    def bits(self, value: Tensor) -> Tensor:
        """Return -1 where a tensor, or the part of it that this rank has, is present, and else 0; they broadcast."""
        if torch.compiler.is_compiling():
            return self._traced
        where = (local(value).shape, window(value)) if is_sharded(value) else (value.shape, value.device)
        if (where, value.dtype) not in self._bits:
            self._bits[where, value.dtype] = self._drawn(value)
        return self._bits[where, value.dtype]

    def _drawn(self, value: Tensor) -> Tensor:
        layout = self.target.layout
        if layout is None:
            return self.target.keep_some(draw_bits(value, self._key, self._p))
        units = draw_units(self._key, self._p, layout.units, value.device)
        return cut(layout.spread(units, value.shape), value).to(bits_dtype(value))

    def entries(self, value: Tensor) -> PresentEntries:
        """Return the present entries of the parameter, or of the part of it that this rank has."""
        return PresentEntries(self.bits(value), local(value).shape if is_sharded(value) else value.shape)

    def kept_shape(self, value: Tensor) -> torch.Size:
        """Return the shape in which an optimizer sees the parameter in a masked step."""
        return value.shape

    def gather(self, value: Tensor) -> Tensor:
        """Return the tensor that takes the place of the parameter in a masked forward."""
        small = masked(value, self.bits(value), self.gradients)
        return small if self.scale == 1 else small * self.scale
