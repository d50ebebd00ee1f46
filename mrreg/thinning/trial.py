"""Admission by trial: a group is admitted if the model's own code, with absent units left out, computes the same."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.thinning.double_copy import Inputs, named_tensors
from mrreg.thinning.paths import Path, Ran, run

TOLERANCE = 1e-9


class Trial:
    """Runs a double copy with some of its groups thin.

    The columns that read the dropped units of any group are zero from the beginning, so that whatever is thin, the
    output has to stay the same.

    Args:
        twin: A double copy. Its parameters change; `randomize` gives it new ones.
        inputs: Arguments of its forward.
        groups: All that may be thin, with the numbers of units that are kept.
        paths: Those on which the output is compared.
    """

    def __init__(self, twin: nn.Module, inputs: Inputs, groups: Sequence[UnitGroup], paths: Sequence[Path]) -> None:
        self.twin, self.inputs = twin, inputs
        self.tensors = named_tensors(twin)
        self.present = {group.name: _present(group, seed) for seed, group in enumerate(groups)}
        for group in groups:
            self._fill_absent(group, ("consumer",), noise=False)
        self.paths, self._left_out = paths, set[str]()
        self.expect()

    def expect(self) -> None:
        """Let what the copy does now be what is expected of it."""
        self.expected = [run(self.twin, self.inputs, path) for path in self.paths]

    @torch.no_grad()
    def _fill_absent(self, group: UnitGroup, roles: tuple[str, ...], noise: bool) -> None:
        for slot in group.slots:
            if slot.role in roles:
                absent = slot.indices[~self.present[group.name]].flatten()
                tensor = self.tensors[slot.name]
                shape = list(tensor.shape)
                shape[slot.dim] = len(absent)
                values = torch.randn(shape).abs() if noise else torch.zeros(shape)
                tensor.index_copy_(slot.dim, absent.to(tensor.device), values.to(tensor))

    def difference(self) -> str:
        """Describe how some path differs from the expected one; nothing if none does."""
        for path, expected in zip(self.paths, self.expected, strict=True):
            try:
                found = run(self.twin, self.inputs, path)
            except Exception as error:
                return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}{path.name}"
            if fault := self._compare(found, expected):
                return f"{fault}{path.name}"
        return ""

    def _compare(self, found: Ran, expected: Ran) -> str:
        if [one.shape for one in found.outputs] != [two.shape for two in expected.outputs]:
            return "the outputs have other shapes"
        for one, two in zip(found.outputs, expected.outputs, strict=True):
            scale = max(1.0, float(two.abs().max())) if two.numel() else 1.0
            worst = float((one - two).abs().max()) if two.numel() else 0.0
            if not worst <= TOLERANCE * scale:
                return f"the output differs by {worst / scale:.1g}"
        if replaced := found.replaced & self._left_out:
            return f"the forward replaces the buffer {min(replaced)}"
        for name, shape in found.buffers.items():
            if name not in self._left_out and shape != expected.buffers.get(name):
                return f"the buffer {name} gets another shape"
        return ""

    def with_noise(self, groups: Iterable[UnitGroup]) -> str:
        """Put noise where the absent units of groups are made, and describe the change of the output."""
        for group in groups:
            self._fill_absent(group, ("producer", "member"), noise=True)
        found = self.difference()
        return found and f"units that nothing should read have an effect: {found}"

    def thin(self, groups: Iterable[UnitGroup], overrides: Iterable[AttributeOverride]) -> str:
        """Leave the absent units of some groups out, and describe how the output then differs."""
        with self.left_out(groups), overridden(self.twin, overrides):
            return self.difference()

    @contextmanager
    def left_out(self, groups: Iterable[UnitGroup]) -> Iterator[frozenset[int]]:
        """Give the copy, inside a `with` block, parameters and buffers without the absent units of some groups.

        Absent entries of groups that keep their shape stay, at zero. Yields the ids of all that have absent entries.
        """
        groups = list(groups)
        absent: dict[tuple[str, int], set[int]] = {}
        for slot, gone in ((s, s.indices[~self.present[g.name]]) for g in groups if not g.keeps_shape for s in g.slots):
            absent.setdefault((slot.name, slot.dim), set()).update(gone.flatten().tolist())
        small: dict[str, Tensor] = {}
        for (name, dim), numbers in absent.items():
            tensor = small.get(name, self.tensors[name])
            kept = torch.tensor([i for i in range(tensor.shape[dim]) if i not in numbers])
            small[name] = tensor.detach().index_select(dim, kept.to(tensor.device))
        self._left_out = set(small)
        masked = {slot.name for group in groups for slot in group.slots}
        with shown(self.twin, {id(self.tensors[name]): value for name, value in small.items()}):
            yield frozenset(id(tensor) for name, tensor in named_tensors(self.twin).items() if name in masked)
        self._left_out = set()

    def forget_values(self) -> None:
        """Free the memory of the parameters: only their shapes are left."""
        for tensor in self.tensors.values():
            if isinstance(tensor, nn.Parameter):
                tensor.data = tensor.new_zeros(()).expand(tensor.shape)


@contextmanager
def shown(model: nn.Module, tensors: Mapping[int, Tensor]) -> Iterator[None]:
    """Show modules, inside a `with` block, other tensors in the place of parameters and buffers with these ids."""
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for module in model.modules():
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for table in tables:
            for name, value in table.items():
                if id(value) in tensors:
                    changed.append((table, name, value))
    try:
        for table, name, value in changed:
            small = tensors[id(value)]
            trained = isinstance(value, nn.Parameter)
            table[name] = nn.Parameter(small, value.requires_grad) if trained else small
        yield
    finally:
        for table, name, value in changed:
            table[name] = value


@contextmanager
def overridden(model: nn.Module, overrides: Iterable[AttributeOverride]) -> Iterator[None]:
    """Give some attributes of modules other values inside a `with` block."""
    changed = [(model.get_submodule(each.module), each) for each in overrides]
    before = [getattr(module, each.attribute) for module, each in changed]
    try:
        for module, each in changed:
            setattr(module, each.attribute, each.value)
        yield
    finally:
        for (module, each), value in zip(changed, before, strict=True):
            setattr(module, each.attribute, value)


def _present(group: UnitGroup, seed: int) -> Tensor:
    """Choose the units that are kept."""
    present = torch.zeros(group.units, dtype=torch.bool)
    present[torch.randperm(group.units, generator=torch.Generator().manual_seed(seed))[: group.kept]] = True
    return present
