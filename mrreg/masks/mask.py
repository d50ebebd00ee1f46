"""The units of a network that are absent from masked steps: their draw, and the parts of parameters that are kept."""

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.distributed.sharding import is_sharded
from mrreg.errors import NoEffectWarning, check_int, check_number, invalid_state
from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.masks.sampling import draw_kept
from mrreg.masks.tensors import WHERE, own_table, tensors_of

NAME = "_thin_mask"  # under which a thin model has its mask
LAYER_NAME = "_layer_mask"  # and a module its `MultirateMask`


Place = tuple[nn.Module, str, dict[str, Any]]


class ForwardRan:
    """Note that a masked forward has run; shared by a mask with its compiled graphs."""

    masked = False


@dataclass
class MoveReport:
    """Shared by the masks of an optimizer: a warning that their weights move outside its steps, given once.

    Args:
        tolerated: Moves between two steps that are no fault: one where a wrapper may climb before it steps.
        given: True once the warning has been given.
    """

    tolerated: int = 0
    given: bool = False


class Mask:
    """The mask of a module: units or entries of its tensors are absent on all but the last step of a cycle.

    Args:
        model: The model with the groups.
        groups: Which units belong together, and how many are kept.
        overrides: Counts of units that modules have as attributes, and their values while units are absent.
        k: Optimizer steps per cycle.
        boost: Factor of the slow step; None means k.
        rescale: Multiply what consumers read of the kept units by units / kept.
        flops: FLOPs of a masked and of a plain step, if they are known.
        where: Who masks, for errors.
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
        where: str = WHERE,
    ) -> None:
        self.where = where
        self.fixed = True  # the numbers of units that are kept
        self.groups, self.overrides, self.rescale = tuple(groups), tuple(overrides), rescale
        self.k, self.flops = check_int(where, "k", k), flops
        self.boost = boost
        self.tensors: dict[str, Any] = dict(tensors_of(self.groups, rescale))
        self.block_group = next((group for group in self.groups if group.blocks), None)
        self.block_factor = self.block_group.units / self.block_group.kept if self.block_group and rescale else 1.0
        self.off: frozenset[int]  # numbers of the blocks that are off in this cycle
        self._model: Callable[[], nn.Module | None] = weakref.ref(model) if model is not None else lambda: None
        self.running: Any = None  # the masked forward that holds the lock
        self._places: tuple[weakref.ref[nn.Module], list[Place]] | None = None
        self.lock = RLock()  # of masked forwards, which change attributes that other threads read
        self.detach()

    @property
    def boost(self) -> float:
        """Factor of the slow step; k unless it was given."""
        return self.k if self._boost is None else self._boost

    @boost.setter
    def boost(self, boost: float | None) -> None:
        valid = "finite, at least 0"
        self._boost = (
            None if boost is None else check_number(self.where, "boost", boost, valid, lambda b: 0 <= b < float("inf"))
        )

    @property
    def p(self) -> float:
        """The largest share of units that a group loses."""
        return max((1 - group.kept / group.units for group in self.groups), default=0.0)

    @property
    def masked(self) -> bool:
        """True while training forwards of the model leave units out."""
        return self.masking and (model := self._model()) is not None and model.training

    def __str__(self) -> str:
        return f"thin: {len(self.groups)} groups lose up to {self.p:.0%} of their units, k={self.k}, boost={self.boost}"

    def places(self, model: nn.Module) -> list[Place]:
        """The modules that have thin tensors, each with its table of them and their names in it; tied ones too."""
        if self._places is None or self._places[0]() is not model:
            if misfits := list(filter(None, (tensor.misfit(model) for tensor in self.tensors.values()))):
                told = ", ".join(misfits[:3])
                problem = f"a layer was replaced since the model became thin, and no longer fits: {told}"
                raise invalid_state(self.where, problem, "Call mrreg.unwrap(model), thin and attach again.")
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
            raise invalid_state(self.where, problem, "Build the optimizer and attach again.") from error

    def attributes(self, model: nn.Module) -> list[tuple[dict[str, Any], str, Any]]:
        """Return the attributes that change for a masked forward: dictionary, name, value."""
        return [(model.get_submodule(o.module).__dict__, o.attribute, o.value) for o in self.overrides]

    def root(self) -> nn.Module:
        """Return the module whose tensors are masked."""
        model = self._model()
        assert model is not None
        return model

    def masked_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the masked parameters with their names in the module."""
        model = self.root()
        for name, tensor in self.tensors.items():
            if isinstance(found := tensor.of(model), nn.Parameter):
                yield name, found

    def draws(self) -> int:
        """Return the number of subsets that are drawn, each with an index of its own."""
        return len(self.groups)

    def _draw(self, seed: int, first: int, cycle: int) -> None:
        """Draw the units that are kept in a cycle."""
        model, cpu = self.root(), torch.device("cpu")
        self.check_fit(model)
        kept = {
            group.name: draw_kept((seed, index, cycle), group.kept, group.units, cpu)
            for index, group in enumerate(self.groups, first)
        }
        if blocks := self.block_group:
            self.off = frozenset(range(blocks.units)).difference(kept[blocks.name].tolist())
        for tensor in self.tensors.values():
            tensor.draw(kept, tensor.of(model))

    def set_phase(self, clock: int, seed: int, first: int) -> None:
        """Enter the phase after `clock` steps; `first` is the index of the first draw."""
        cycle, phase = divmod(clock, self.k)
        key = (seed, first, cycle, self.p) if self.p > 0 and (self.k > 1 or self.boost != 1) else None
        if self.drawn != key:  # also for a joint step whose boost may be set yet
            self.off = frozenset()
            if key is not None:
                with torch.inference_mode(False):  # the next cycle may be drawn elsewhere into the same memory
                    self._draw(seed, first, cycle)
            self.drawn = key
        self.masking, self.attached = self.p > 0 and phase < self.k - 1, True
        self.forget_versions()

    def forget_versions(self) -> None:
        """Note that parameters were written to legitimately."""
        self._version: tuple[int, int] | None = None
        self._moves = 0

    def warn_if_moved(self) -> None:
        """Warn once per optimizer that weights moved after a backward pass, but in no step that it counted."""
        cut = ((name, p) for name, p in self.masked_parameters() if self.tensors[name].cuts)
        found = next(((name, p) for name, p in cut if p.requires_grad), None)
        if found is None or self.move_report.given or not torch.is_grad_enabled():
            return
        memory, before = self.tensors[found[0]].gradients, self._version
        self._version = now = id(found[1]), found[1]._version
        self._moves += memory.used and before is not None and before[0] == now[0] and before != now
        memory.used = False
        if self._moves > self.move_report.tolerated:
            self.move_report.given = True
            problem = "masked weights moved between two forwards, but no step of the attached optimizer was seen"
            remedy = "Attach the optimizer whose step() moves them; until then the masks stand still."
            warnings.warn(f"attach: {problem}. {remedy}", NoEffectWarning, stacklevel=6)

    def warn_if_unused(self) -> None:
        """Warn once that a masked step ended whose gradients come from whole forwards."""
        if not self.masking or self.forward_ran.masked:
            return
        if any(p.grad is not None and self._reaches_absent(name, p.grad) for name, p in self.masked_parameters()):
            self.forward_ran.masked = True  # or has been reported
            kind = type(self.root()).__name__
            problem = f"the mask of a {kind} has no effect: what is absent got a gradient, yet its forward has not run"
            remedy = "Call the masked module itself in training mode, or mask the module that your loop calls"
            warnings.warn(f"attach: {problem}. {remedy}.", NoEffectWarning, stacklevel=6)

    def _reaches_absent(self, name: str, grad: Tensor) -> bool:
        tensor = self.tensors[name]
        if not tensor.has_absent or is_sharded(grad) or grad.layout is not torch.strided:
            return False
        if tensor.off:
            return bool(grad.any())
        absent, entries = grad.detach().clone(), tensor.entries(grad)
        entries.put(torch.zeros_like(entries.take(absent)), absent)
        return bool((absent != 0).any())

    def detach(self) -> None:
        """Become dense and undriven."""
        self.masking = self.attached = self.warned = False
        self.move_report = MoveReport()
        self.forget_versions()
        self.forward_ran = ForwardRan()
        self.drawn: Any = None  # what the subsets were drawn from
        self.off = frozenset()

    @property
    def is_lone(self) -> bool:
        """True for a copy that no module has got yet."""
        return self._model() is None

    def rebuild(self) -> None:
        """Compute again what hooks of the module have made of masked parameters."""

    def belongs_to(self, model: nn.Module) -> None:
        """Know the module whose tensors are masked: a copy has another one."""
        if self._model() is not model:
            self._model = weakref.ref(model)

    def forget(self) -> None:
        """Have no groups, whatever still drives the mask."""
        self.detach()
        self.groups, self.tensors, self.block_group = (), {}, None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a mask that nothing drives; the model that has it gives itself in."""
        return Mask, (
            None,
            self.groups,
            self.overrides,
            self.k,
            self._boost,
            self.rescale,
            self.flops,
        )


def find_mask(model: nn.Module, name: str = NAME) -> Mask | None:
    """Return the mask of a module; a copy of a module gets to know its own here."""
    mask: Mask | None = vars(model).get(name)
    if mask is not None:
        mask.belongs_to(model)
    return mask


def masks_of(module: nn.Module) -> list[Mask]:
    """Return the masks of this very module."""
    return [mask for name in (NAME, LAYER_NAME) if (mask := find_mask(module, name)) is not None]
