"""Parameters and buffers of a mask: which entries of them are present, and what stands for them in a forward."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mrreg.distributed.sharding import cut, is_sharded, local, window
from mrreg.errors import invalid_argument
from mrreg.masks.entries import KeptEntries, PresentEntries, ReusableBuffer, bits_dtype, gather, masked
from mrreg.masks.groups import Slot, UnitGroup
from mrreg.masks.layers import MaskTarget
from mrreg.masks.sampling import Key, draw_bits, draw_units

Subsets = Mapping[str, Any]  # by group: the units that are kept, or what entries are drawn from


class _Tensor:
    """One parameter or buffer of a mask; `scale` is the factor of present entries in masked forwards."""

    off = False  # all of it is absent, with its block
    is_buffer = False  # in the module, whatever functional_call puts in its place
    cuts: Any = True  # what takes a part of it away

    def __init__(self, name: str) -> None:
        self.name = name
        self.scale: float | Tensor = 1.0
        self.gradients = ReusableBuffer()

    @property
    def has_absent(self) -> bool:
        """True if entries are absent in this cycle."""
        return self.off or bool(self.cuts)

    def of(self, model: nn.Module) -> Tensor:
        """Return the parameter or buffer of this name in a model; `get_parameter` takes too long for every step."""
        *path, leaf = self.name.split(".")
        module: Any = model
        for each in path:
            module = module._modules[each]
        parameters, buffers = (own_table(module, kind) for kind in ("_parameters", "_buffers"))
        return (parameters if leaf in parameters else buffers)[leaf]  # type: ignore[no-any-return]

    def misfit(self, model: nn.Module) -> str:
        """Say how a model no longer has this tensor; nothing if it does."""
        try:
            self.of(model)
        except (AttributeError, KeyError):
            return f"{self.name!r} is gone"
        return ""


class ZeroedTensor(_Tensor):
    """One whose absent entries, or whole units, keep their places and count as zero."""

    def __init__(self, target: MaskTarget) -> None:
        super().__init__(target.name)
        self.target = target
        self._p = 0.0
        self._bits: dict[object, Tensor] = {}  # by the part of the parameter: a sharded one has two
        self._traced = torch.empty(0, device="cpu")

    @property
    def share(self) -> float:
        """Share of the entries that is present on masked steps, on average over cycles."""
        units = self.target.layout.units if self.target.layout else 0
        return 1 - (round(self._p * units) / units if units else self._p)

    def draw(self, subsets: Subsets, value: Tensor) -> None:
        """Take over what is present in a cycle."""
        self._key: Key
        self._key, self._p, self.scale = subsets[self.target.group]
        self._bits = {}
        self._traced = self.bits(value)

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
            bits = draw_bits(value, self._key, self._p)
            return self.target.keep_some(bits, bits.shape)
        units = layout.spread(draw_units(self._key, self._p, layout.units, value.device), value.shape)
        return cut(self.target.keep_some(units, value.shape), value).to(bits_dtype(value))

    def entries(self, value: Tensor) -> PresentEntries:
        """Return the present entries of the tensor; of a sharded one, those in the part that this rank has."""
        return PresentEntries(self.bits(value), local(value).shape if is_sharded(value) else value.shape)

    shown = entries  # that a forward reads

    def kept_shape(self, value: Tensor) -> torch.Size:
        """Return the shape in which an optimizer sees a parameter in a masked step, on all ranks together."""
        return value.shape

    def gather(self, value: Tensor) -> Tensor:
        """Return the tensor that takes the place of the parameter or buffer in a masked forward."""
        small = masked(value, self.bits(value), self.gradients)
        return small if self.scale == 1 else small * self.scale


class Cut(NamedTuple):
    """The units of a group along a dimension of a tensor, and the factor of what is kept of them in masked forwards."""

    group: UnitGroup
    slot: Slot
    factor: float

    @property
    def computed(self) -> bool:
        """True if forwards read everything, and an optimizer sees what is kept."""
        return (self.group.zeroed or self.group.kind == "inputs") and self.slot.role != "consumer"


class GatheredTensor(_Tensor):
    """One that loses units: the rows, columns and members of those that stay are gathered into a smaller tensor.

    `cuts` are the units along each dimension that counts some; `block` is the group and the number of its block.
    """

    def __init__(
        self, name: str, cuts: Mapping[int, Sequence[Cut]], block: tuple[UnitGroup, int] | None = None
    ) -> None:
        super().__init__(name)
        self.cuts, self.block = cuts, block
        self._kept, self._read = _Kept(), _Kept()  # what an optimizer sees, and what forwards read
        self._wide: dict[int, tuple[int, Tensor]] = {}  # sizes with zeros for absent units, and where the others lie

    @property
    def kept(self) -> Mapping[int, Tensor]:
        """Positions that an optimizer sees in this cycle, by dimension."""
        return self._kept.along

    @property
    def share(self) -> float:  # noqa: D102
        share = self.block[0].kept / self.block[0].units if self.block else 1.0
        for cuts in self.cuts.values():
            absent = (slot.indices.numel() * (1 - group.kept / group.units) for group, slot, _ in cuts)
            share *= 1 - sum(absent) / cuts[0].slot.length
        return share

    def misfit(self, model: nn.Module) -> str:  # noqa: D102
        if gone := super().misfit(model):
            return gone
        shape = self.of(model).shape
        for dim, cuts in self.cuts.items():
            if shape[dim : dim + 1] != (cuts[0].slot.length,):
                return f"{self.name!r} has {tuple(shape)}, not {cuts[0].slot.length} in dimension {dim}"
        return ""

    def draw(self, subsets: Subsets, value: Tensor) -> None:  # noqa: D102
        self.is_buffer = not isinstance(value, nn.Parameter)
        if self.block is not None:
            group, number = self.block
            self.off = number not in subsets[group.name]
        own, read, self.scale = {}, {}, 1.0
        for dim, cuts in self.cuts.items():
            present, seen, stays = torch.ones(3, value.shape[dim], dtype=torch.bool, device="cpu")
            factors = torch.ones(value.shape[dim], dtype=torch.float64, device="cpu")
            for each in cuts:
                lost = torch.ones(each.group.units, dtype=torch.bool, device="cpu")
                absent = each.slot.indices[lost.index_fill(0, subsets[each.group.name], False)].flatten()
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
                self.scale = self.scale * float(factors[0])
            else:
                self.scale = self.scale * factors.to(value.device, value.dtype).view(-1, *[1] * (value.dim() - dim - 1))
        self._kept.set(own, value)
        self._read.set(read, value)

    def entries(self, value: Tensor) -> KeptEntries:  # noqa: D102
        return self._kept.entries(value)

    def shown(self, value: Tensor) -> KeptEntries:  # noqa: D102
        return self._read.entries(value)

    def kept_shape(self, value: Tensor) -> torch.Size:  # noqa: D102
        return torch.Size(self.kept[dim].numel() if dim in self.kept else size for dim, size in enumerate(value.shape))

    def gather(self, value: Tensor) -> Tensor:  # noqa: D102
        if not self._read.along:
            return value
        small = gather(value, self.shown(value), self.scale, self.gradients)
        for dim, (size, where) in self._wide.items():
            shape = [*small.shape[:dim], size, *small.shape[dim + 1 :]]
            small = small.new_zeros(shape).index_copy(dim, where.to(small.device), small)
        return small


MaskedTensor = ZeroedTensor | GatheredTensor


class _Kept:
    """What a cycle keeps of one tensor: ascending indices along each dimension of which something is dropped."""

    def __init__(self) -> None:
        self.along: Mapping[int, Tensor] = {}
        self._traced: KeptEntries | None = None
        self._entries: dict[object, KeptEntries] = {}  # by shape and layout: a sharded parameter has two

    def set(self, along: Mapping[int, Tensor], value: Tensor) -> None:
        self.along, self._entries = along, {}
        whole = torch.empty(value.shape, device="meta") if is_sharded(value) else value
        self._traced = KeptEntries(whole, along, value.device)  # graphs have the indices as inputs

    def entries(self, value: Tensor) -> KeptEntries:
        if torch.compiler.is_compiling():
            return self._traced or KeptEntries(value, self.along, value.device)
        sharded = is_sharded(value)
        size, start = window(value) if sharded else (value.shape, (0,) * value.dim())
        here: Tensor = value.to_local() if sharded else value  # type: ignore[attr-defined]
        key = here.shape, here.stride(), here.device, start
        found = self._entries.get(key)
        if found is None:
            kept = {}
            for dim, indices in self.along.items():
                inside = (indices >= start[dim]) & (indices < start[dim] + size[dim])
                kept[dim] = indices[inside] - start[dim]
            found = self._entries[key] = KeptEntries(here, kept, here.device)
        return found


def own_table(module: nn.Module, kind: str) -> Any:
    """Return the `_parameters` or `_buffers` of a module, also while another table stands for it."""
    table = module.__dict__[kind]
    return getattr(table, "own", table)


def tensors_of(groups: Iterable[UnitGroup], rescale: bool, where: str) -> dict[str, MaskedTensor]:
    """Collect the slots of groups that lose units, for each parameter and buffer."""
    cuts: dict[str, dict[int, list[Cut]]] = {}
    blocks = {name: (g, i) for g in groups for i, block in enumerate(g.blocks) for name in block.parameters}
    for group in groups:
        for slot in group.slots if group.kept < group.units else ():
            here = cuts.setdefault(slot.name, {}).setdefault(slot.dim, [])
            if any(torch.isin(cut.slot.indices, slot.indices).any() for cut in here):
                rule = f"one for each position along dimension {slot.dim} of {slot.name!r}"
                raise invalid_argument(ValueError, where, "groups", rule, group.name)
            here.append(Cut(group, slot, group.units / group.kept if rescale and slot.role == "consumer" else 1.0))
    return {
        name: GatheredTensor(name, cuts.get(name, {}), blocks.get(name)) for name in dict.fromkeys([*cuts, *blocks])
    }
