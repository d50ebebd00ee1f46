"""Parameters and buffers of a mask: which entries of them are present, and what stands for them in a forward."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mrreg.distributed.sharding import cut, is_sharded, local, window
from mrreg.masks.entries import KeptEntries, PresentEntries, ReusableBuffer, bits_dtype, gather
from mrreg.masks.groups import Slot, UnitGroup
from mrreg.masks.layers import MaskTarget
from mrreg.masks.sampling import Key, draw_bits, draw_units

Subsets = Mapping[str, Any]  # by group: the units that are kept, or what entries are drawn from


class _Parts:
    """What is present of a tensor in a cycle: in all of it, or in the part that this rank has."""

    def __init__(self, make: Callable[[Tensor], Any], traced: Any) -> None:
        self._make, self._traced = make, traced  # graphs have what belongs to it as inputs
        self._made: dict[object, Any] = {}

    def __call__(self, value: Tensor) -> Any:
        if torch.compiler.is_compiling():
            return self._traced
        sharded = is_sharded(value)
        here = local(value) if sharded else value
        key = here.shape, here.stride(), here.dtype, here.device, window(value) if sharded else None
        if key not in self._made:
            self._made[key] = self._make(value)
        return self._made[key]


class _Tensor:
    """One parameter or buffer of a mask; `scale` is the factor of present entries in masked forwards."""

    off = False  # all of it is absent, with its block
    reads_all = False  # what forwards read is the tensor itself
    writable = False  # by forwards: a buffer, such as a statistic, that reads no units
    cuts: Any = True  # what takes a part of it away
    entries: _Parts  # that an optimizer sees in this cycle
    shown: _Parts  # that forwards read

    def __init__(self, name: str) -> None:
        self.name = name
        self.scale: float | Tensor = 1.0
        self.gradients = ReusableBuffer()
        self.lengths: Mapping[int, int] = {}  # that dimensions have to have
        self.kept: Mapping[int, Tensor] = {}  # positions that an optimizer sees in this cycle, where dimensions shrink

    def of(self, model: nn.Module) -> Tensor:
        """Return the parameter or buffer of this name in a model; `get_parameter` takes too long for every step."""
        *path, leaf = self.name.split(".")
        module: Any = model
        for each in path:
            module = module._modules[each]
        parameters, buffers = (own_table(module, kind) for kind in ("_parameters", "_buffers"))
        return (parameters if leaf in parameters else buffers)[leaf]  # type: ignore[no-any-return]

    def fits(self, model: nn.Module) -> bool:
        """Tell if a model has this tensor, with as many units."""
        try:
            shape = self.of(model).shape
        except (AttributeError, KeyError):
            return False
        return all(shape[dim : dim + 1] == (length,) for dim, length in self.lengths.items())

    def present(self, value: Tensor) -> float:
        """Return the number of entries that are present in this cycle; of those drawn singly, the expected one."""
        return 0 if self.off else self.kept_shape(value).numel()

    def kept_shape(self, value: Tensor) -> torch.Size:
        """Return the shape in which an optimizer sees a parameter in a masked step, on all ranks together."""
        return torch.Size(self.kept[dim].numel() if dim in self.kept else size for dim, size in enumerate(value.shape))

    def gather(self, value: Tensor) -> Tensor:
        """Return the tensor that takes the place of the parameter or buffer in a masked forward."""
        return value if self.reads_all else gather(value, self.shown(value), self.scale, self.gradients)


class ZeroedTensor(_Tensor):
    """One whose absent entries, or whole units, keep their places and count as zero."""

    def __init__(self, target: MaskTarget) -> None:
        super().__init__(target.name)
        self.target, self._p = target, 0.0

    def present(self, value: Tensor) -> float:  # noqa: D102
        units = self.target.units
        return value.numel() * (1 - (round(self._p * units) / units if units else self._p))

    def draw(self, subsets: Subsets, value: Tensor) -> None:
        """Take over what is present in a cycle."""
        self._key: Key
        self._key, self._p, self.scale = subsets[self.target.group]
        self.entries = self.shown = _Parts(self._present, self._present(value))

    def _present(self, value: Tensor) -> PresentEntries:
        target = self.target
        if target.dim is None:
            drawn = draw_bits(value, self._key, self._p)
            bits = target.spread(drawn, drawn.shape)
        else:
            units = draw_units(self._key, self._p, target.units, value.device)
            bits = cut(target.spread(units, value.shape), value).to(bits_dtype(value))
        return PresentEntries(bits, local(value).shape)


class Cut(NamedTuple):
    """The units of a group along a dimension of a tensor, and the factor of what is kept of them in masked forwards."""

    group: UnitGroup
    slot: Slot
    factor: float


class GatheredTensor(_Tensor):
    """One that loses units: the rows, columns and members of those that stay are gathered into a smaller tensor."""

    def __init__(
        self, name: str, cuts: Mapping[int, Sequence[Cut]], block: tuple[UnitGroup, int] | None = None
    ) -> None:
        super().__init__(name)
        self.cuts, self.block = cuts, block  # units by dimension; the group and number of the block that it is in
        self.lengths = {dim: each[0].slot.length for dim, each in cuts.items()}

    def draw(self, subsets: Subsets, value: Tensor) -> None:  # noqa: D102
        reads = any(each.slot.role == "consumer" for cuts in self.cuts.values() for each in cuts)
        self.writable = not (reads or isinstance(value, nn.Parameter))
        if self.block is not None:
            group, number = self.block
            self.off = number not in subsets[group.name]
        own, read, self.scale = {}, {}, 1.0
        for dim, cuts in self.cuts.items():
            present, seen = torch.ones(2, value.shape[dim], dtype=torch.bool, device="cpu")
            factors = torch.ones(value.shape[dim], dtype=torch.float64, device="cpu")
            for each in cuts:
                lost = torch.ones(each.group.units, dtype=torch.bool, device="cpu")
                absent = each.slot.indices[lost.index_fill(0, subsets[each.group.name], False)].flatten()
                factors[each.slot.indices.flatten()] = each.factor
                present[absent] = False
                if each.slot.role == "consumer" or not each.group.keeps_shape:  # else forwards read all of it
                    seen[absent], factors[absent] = each.group.keeps_shape, 0.0  # a column that keeps its place is zero
            own[dim], factors = present.nonzero().flatten(), factors[seen]
            if not seen.all():
                read[dim] = seen.nonzero().flatten()
            if factors.min() == factors.max():
                self.scale = self.scale * float(factors[0])
            else:
                self.scale = self.scale * factors.to(value.device, value.dtype).view(-1, *[1] * (value.dim() - dim - 1))
        self.kept, self.reads_all = own, not read and isinstance(self.scale, float)
        self.entries, self.shown = _parts_of(own, value), _parts_of(read, value)


MaskedTensor = ZeroedTensor | GatheredTensor


def _parts_of(along: Mapping[int, Tensor], value: Tensor) -> _Parts:
    """Return the entries at ascending positions along each dimension of which something is dropped."""

    def make(value: Tensor) -> KeptEntries:
        here, kept = local(value), along
        if is_sharded(value):
            ends = list(zip(*window(value), strict=True))  # size and start of the part, by dimension
            places = {dim: indices - ends[dim][1] for dim, indices in along.items()}
            kept = {dim: each[(each >= 0) & (each < ends[dim][0])] for dim, each in places.items()}
        return KeptEntries(here, kept, here.device)

    whole = torch.empty(value.shape, device="meta") if is_sharded(value) else value
    return _Parts(make, KeptEntries(whole, along, value.device))


def own_table(module: nn.Module, kind: str) -> Any:
    """Return the `_parameters` or `_buffers` of a module, also while another table stands for it."""
    table = module.__dict__[kind]
    return getattr(table, "own", table)


def tensors_of(groups: Iterable[UnitGroup], rescale: bool) -> dict[str, MaskedTensor]:
    """Collect the slots of groups that lose units, for each parameter and buffer."""
    cuts: dict[str, dict[int, list[Cut]]] = {}
    blocks = {name: (g, i) for g in groups for i, block in enumerate(g.blocks) for name in block.parameters}
    for group in groups:
        for slot in group.slots if group.kept < group.units else ():
            here = cuts.setdefault(slot.name, {}).setdefault(slot.dim, [])
            here.append(Cut(group, slot, group.units / group.kept if rescale and slot.role == "consumer" else 1.0))
    return {
        name: GatheredTensor(name, cuts.get(name, {}), blocks.get(name)) for name in dict.fromkeys([*cuts, *blocks])
    }
