"""The units of a network that are absent from masked steps: their draw, and the parts of parameters that are kept."""

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.distributed.sharding import is_sharded
from mrreg.errors import NoEffectWarning, check_int, check_number, invalid_state
from mrreg.masks.base import CyclicMask, ForwardRan, MoveReport
from mrreg.masks.sampling import draw_kept
from mrreg.masks.slots import AttributeOverride, UnitGroup
from mrreg.masks.thin_tensor import WHERE, ThinTensor, own_table, tensors_of

NAME = "_thin_mask"  # under which a thin model has its mask


Place = tuple[nn.Module, str, dict[str, ThinTensor]]


class ThinMask(CyclicMask):
    """The mask of a thin model: groups of units, of which some are absent on all but the last step of a cycle.

    Args:
        model: The model with the groups.
        groups: Which units belong together, and how many are kept.
        overrides: Counts of units that modules have as attributes, and their values while units are absent.
        k: Optimizer steps per cycle.
        boost: Factor of the slow step; None means k.
        rescale: Multiply what consumers read of the kept units by units / kept.
        flops: FLOPs of a masked and of a plain step, if they are known.
        resident: Keep the kept entries in the place of parameters for a cycle, as long as nobody looks.
    """

    def __init__(
        self,
        model: nn.Module | None,
        groups: Iterable[UnitGroup],
        overrides: Iterable[AttributeOverride],
        k: int,
        boost: float | None,
        rescale: bool,
        flops: tuple[int, int] | None = None,
        resident: bool = False,
    ) -> None:
        self.resident = resident
        self.residents: Any = None  # of the optimizer that drives the mask
        self.groups, self.overrides, self.rescale = tuple(groups), tuple(overrides), rescale
        self.k, self.flops = check_int(WHERE, "k", k), flops
        self.boost = boost
        self.tensors = tensors_of(self.groups, rescale)
        self.block_group = next((group for group in self.groups if group.blocks), None)
        self.block_factor = self.block_group.units / self.block_group.kept if self.block_group and rescale else 1.0
        self.off: frozenset[int] = frozenset()  # numbers of the blocks that are off in this cycle
        self._model: Callable[[], nn.Module | None] = weakref.ref(model) if model is not None else lambda: None
        self.running: Any = None  # the masked forward that holds the lock
        self.tables: list[Any] = []  # which stand for those of modules
        self._places: tuple[weakref.ref[nn.Module], list[Place]] | None = None
        self.lock = RLock()  # of masked forwards, which change attributes that other threads read
        self._detach()

    @property
    def boost(self) -> float:
        """Factor of the slow step; k unless it was given."""
        return self.k if self._boost is None else self._boost

    @boost.setter
    def boost(self, boost: float | None) -> None:
        valid = "finite, at least 0"
        self._boost = (
            None if boost is None else check_number(WHERE, "boost", boost, valid, lambda b: 0 <= b < float("inf"))
        )

    @property
    def p(self) -> float:  # type: ignore[override]
        """The largest share of units that a group loses."""
        return max((1 - group.kept / group.units for group in self.groups), default=0.0)

    @property
    def masked(self) -> bool:
        """True while training forwards of the model leave units out."""
        return self._masking and (model := self._model()) is not None and model.training

    def __str__(self) -> str:
        return f"thin: {len(self.groups)} groups lose up to {self.p:.0%} of their units, k={self.k}, boost={self.boost}"

    def places(self, model: nn.Module) -> list[Place]:
        """The modules that have thin tensors, each with its table of them and their names in it; tied ones too."""
        if self._places is None or self._places[0]() is not model:
            if misfits := list(filter(None, (tensor.misfit(model) for tensor in self.tensors.values()))):
                told = ", ".join(misfits[:3])
                problem = f"a layer was replaced since the model became thin, and no longer fits: {told}"
                raise invalid_state(WHERE, problem, "Call mrreg.unwrap(model), thin and attach again.")
            thin = {id(tensor.of(model)): tensor for tensor in self.tensors.values() if tensor.cuts}
            places = []
            for module, kind in product(model.modules(), ("_parameters", "_buffers")):
                found = {name: thin[id(value)] for name, value in own_table(module, kind).items() if id(value) in thin}
                if found:
                    places.append((module, kind, found))
            self._places = weakref.ref(model), places
        return self._places[1]

    def check_fit(self, model: nn.Module) -> None:
        """Look for the modules again, and raise if the model has no longer what it had when it became thin."""
        self._places = None
        self.places(model)

    def explain(self, model: nn.Module, error: Exception) -> None:
        """Raise a better error than that of a masked forward, if the model has been changed."""
        before = [module for module, *_ in self.places(model)]
        try:
            self.check_fit(model)
        except RuntimeError as better:
            raise better from error
        if before != [module for module, *_ in self.places(model)]:
            problem = "a layer was replaced since the optimizer was attached"
            raise invalid_state(WHERE, problem, "Build the optimizer and attach again.") from error

    def attributes(self, model: nn.Module) -> list[tuple[dict[str, Any], str, Any]]:
        """Return the attributes that change for a masked forward: dictionary, name, value."""
        return [(model.get_submodule(o.module).__dict__, o.attribute, o.value) for o in self.overrides]

    def _root(self) -> nn.Module:
        model = self._model()
        assert model is not None
        return model

    def _masked_parameters(self) -> Iterator[tuple[str, Tensor]]:
        model = self._root()
        for name, tensor in self.tensors.items():
            if isinstance(found := tensor.of(model), nn.Parameter):
                yield name, found

    def _draws(self) -> int:
        return len(self.groups)

    def _draw(self, seed: int, first: int, cycle: int) -> None:
        """Draw the units that are kept in a cycle."""
        model, cpu = self._root(), torch.device("cpu")
        self.check_fit(model)
        kept = {
            group.name: draw_kept((seed, index, cycle), group.kept, group.units, cpu)
            for index, group in enumerate(self.groups, first)
        }
        if blocks := self.block_group:
            self.off = frozenset(range(blocks.units)).difference(kept[blocks.name].tolist())
        for tensor in self.tensors.values():
            tensor.draw(kept, tensor.of(model))

    def _clear_mask(self) -> None:
        self._drawn, self.off = None, frozenset()

    def _set_phase(self, clock: int, seed: int, first: int) -> None:
        if self._drawn != (seed, first, clock // self.k, self.p):
            self.write_back()
        super()._set_phase(clock, seed, first)
        self._forget_versions()

    def _forget_versions(self) -> None:
        self._version: object = None
        self._moves = 0

    def warn_if_moved(self) -> None:
        """Warn once per optimizer that weights moved after a backward pass, but in no step that it counted."""
        cut = ((name, p) for name, p in self._masked_parameters() if self.tensors[name].cuts)
        found = next(((name, p) for name, p in cut if p.requires_grad), None)
        if found is None or self._move_report.given or not torch.is_grad_enabled():
            return
        memory, before = self.tensors[found[0]].gradients, self._version
        self._version = found[1]._version
        self._moves += memory.used and before is not None and before != self._version
        memory.used = False
        if self._moves > self._move_report.tolerated:
            self._move_report.given = True
            problem = (
                "weights of a thin model moved between two forwards, but no step of the attached optimizer was seen"
            )
            remedy = "Attach the optimizer whose step() moves them; until then the same units stay absent."
            warnings.warn(f"attach: {problem}. {remedy}", NoEffectWarning, stacklevel=6)

    def warn_if_unused(self) -> None:
        """Warn once that a masked step ended whose gradients come from whole forwards."""
        if not self._masking or self._forward_ran.masked:
            return
        if any(p.grad is not None and self._reaches_absent(name, p.grad) for name, p in self._masked_parameters()):
            self._forward_ran.masked = True  # or has been reported
            problem = "the thin model has no effect: absent units got a gradient, yet its own forward has not run"
            remedy = "Call the model itself in training mode, or make the module thin that your loop calls"
            warnings.warn(f"attach: {problem}. {remedy}.", NoEffectWarning, stacklevel=6)

    def _reaches_absent(self, name: str, grad: Tensor) -> bool:
        tensor = self.tensors[name]
        if not tensor.has_absent or is_sharded(grad) or grad.layout is not torch.strided:
            return False
        if tensor.off:
            return bool(grad.any())
        absent, entries = grad.detach().clone(), tensor.entries(grad)
        entries.put(torch.zeros_like(entries.take(absent)), absent)
        return bool(absent.any())

    def write_back(self) -> None:
        """Let the model and its optimizer have whole parameters."""
        if self.residents is not None:
            self.residents.leave()

    def release_tables(self) -> None:
        """Give modules their own tables of parameters back, unless a forward reads them."""
        while self.tables and self.running is None:
            self.tables.pop().restore()

    def _detach(self) -> None:
        """Become dense and undriven."""
        self.write_back()
        self.residents = None
        self._masking = self._attached = self._warned = False
        self._move_report = MoveReport()
        self._forget_versions()
        self._forward_ran = ForwardRan()
        self._clear_mask()

    def forget(self) -> None:
        """Have no groups, whatever still drives the mask."""
        self._detach()
        self.groups, self.tensors, self.block_group = (), {}, None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a mask that nothing drives; the model that has it gives itself in."""
        return ThinMask, (
            None,
            self.groups,
            self.overrides,
            self.k,
            self._boost,
            self.rescale,
            self.flops,
            self.resident,
        )


def thin_mask(model: nn.Module) -> ThinMask | None:
    """Return the mask of a thin model; a copy of a model gets to know its own here."""
    mask: ThinMask | None = vars(model).get(NAME)
    if mask is not None and mask._model() is not model:
        mask._model = weakref.ref(model)
    return mask
