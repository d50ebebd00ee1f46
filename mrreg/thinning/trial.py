"""Forwards of a double copy with a mask, compared with what it computes with zeros for absent units in its columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.masks.install import put_mask, take_mask
from mrreg.masks.mask import NAME, Mask
from mrreg.thinning.paths import Path, Ran, failure, run
from mrreg.thinning.twin import WHERE, Inputs, named_tensors

SUBSETS = 3  # of units that are tried


def draws(group: UnitGroup, seed: int) -> list[Tensor]:
    """Return subsets of kept units: the first units, the last, and random ones."""
    order = torch.randperm(group.units, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    every = torch.arange(group.units, device="cpu")
    return [every[: group.kept], every[-group.kept :], order[: group.kept].sort().values]


@contextmanager
def thinned(
    twin: nn.Module, groups: Sequence[UnitGroup], overrides: Iterable[AttributeOverride], kept: Mapping[str, Tensor]
) -> Iterator[None]:
    """Make a copy thin inside a `with` block, with these units kept in each group."""
    mask = Mask(WHERE, groups, (), overrides, k=2, boost=1.0, rescale=False)
    mask.masking = mask.attached = True
    for tensor in mask.tensors.values():
        tensor.draw(kept, tensor.of(twin))
    put_mask(twin, mask, NAME)
    try:
        yield
    finally:
        take_mask(twin, NAME)


class Trial:
    """Runs a double copy with some of its groups thin, and the others with literal zeros in the columns that read them.

    So the output is always that of zeros in all of them. The plain path is tried with all subsets, others with one. The
    random weights of the copy serve as noise in absent units too.
    """

    def __init__(self, twin: nn.Module, inputs: Inputs, groups: Sequence[UnitGroup], paths: Sequence[Path]) -> None:
        self.twin, self.inputs, self.groups, self.paths = twin, inputs, groups, paths
        self.tensors = named_tensors(twin)
        drawn = [draws(group, seed) for seed, group in enumerate(groups)]
        self.kept = [{group.name: each[i] for group, each in zip(groups, drawn, strict=True)} for i in range(SUBSETS)]
        plain, *others = paths
        self.cases = [(i, [plain, *others[i::SUBSETS]]) for i in range(SUBSETS)] if groups else [(0, list(paths))]
        self.weights = {slot.name: self.tensors[slot.name].detach().clone() for each in groups for slot in each.slots}
        self.expect()

    def expect(self) -> None:
        """Let what the copy does now, with zeros in columns, be what is expected of it."""
        self.expected: dict[tuple[int, Path], Ran] = {}
        for draw, paths in self.cases:
            self._zero(draw, self.groups)
            self.expected |= {(draw, path): run(self.twin, self.inputs, path) for path in paths}

    def fault(self, groups: Sequence[UnitGroup] = (), overrides: Iterable[AttributeOverride] = ()) -> str:
        """Describe how the output differs if a mask makes some groups thin; nothing if it does not."""
        names, overrides = {group.name for group in groups}, list(overrides)
        slots = {slot.name for group in groups for slot in group.slots if not group.keeps_shape}
        for draw, paths in self.cases:
            self._zero(draw, [group for group in self.groups if group.name not in names])
            with thinned(self.twin, groups, overrides, self.kept[draw]) if groups else nullcontext():
                if found := self._difference(draw, paths, slots):
                    return found
        return ""

    def noise(self, groups: Sequence[UnitGroup]) -> str:
        """Put noise where absent units of groups are made, and describe the change of the output."""
        for draw, paths in self.cases:
            self._zero(draw, self.groups)
            for group in groups:
                self._write(group, draw, ("producer", "member"), noise=True)
            if found := self._difference(draw, paths, set()):
                return f"units that nothing should read have an effect: {found}"
        return ""

    @torch.no_grad()
    def whole(self) -> None:
        """Give the copy its weights back."""
        for name, value in self.weights.items():
            self.tensors[name].copy_(value)

    def _zero(self, draw: int, groups: Sequence[UnitGroup]) -> None:
        """Have zeros in the columns that read absent units of these groups, and of no others."""
        self.whole()
        for group in groups:
            self._write(group, draw, ("consumer",), noise=False)

    @torch.no_grad()
    def _write(self, group: UnitGroup, draw: int, roles: tuple[str, ...], noise: bool) -> None:
        gone = torch.ones(group.units, dtype=torch.bool, device="cpu")
        gone[self.kept[draw][group.name]] = False
        for slot in group.slots:
            if slot.role in roles:
                tensor = self.tensors[slot.name]
                absent = slot.indices[gone].flatten().to(tensor.device)
                values = tensor.index_select(slot.dim, absent)
                tensor.index_copy_(slot.dim, absent, torch.randn_like(values).abs() if noise else 0 * values)

    def _difference(self, draw: int, paths: Iterable[Path], slots: set[str]) -> str:
        for path in paths:
            expected = self.expected[draw, path]
            if replaced := expected.replaced & slots:
                return f"the forward replaces the buffer {min(replaced)}{path.name}"
            try:
                fault = difference(run(self.twin, self.inputs, path), expected)
            except Exception as error:
                fault = failure(error)
            if fault:
                return f"{fault}{path.name}"
        return ""


def difference(found: Ran, expected: Ran) -> str:
    """Describe how outputs, or shapes of buffers, differ by more than rounding; nothing if they do not."""
    if [one.shape for one in found.outputs] != [two.shape for two in expected.outputs]:
        return "the outputs have other shapes"
    for one, two in zip(found.outputs, expected.outputs, strict=True):
        scale = max(1.0, float(two.abs().max())) if two.numel() else 1.0
        worst = float((one - two).abs().max()) if two.numel() else 0.0
        if not worst <= (1e-9 if torch.get_default_dtype() == torch.float64 else 1e-4) * scale:
            return f"the output differs by {worst / scale:.1g}"
    changed = [name for name, shape in found.buffers.items() if shape != expected.buffers.get(name)]
    return f"the buffer {changed[0]} gets another shape" if changed else ""
