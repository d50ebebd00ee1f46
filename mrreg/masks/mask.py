"""The mask of a module: what it draws, and when what is drawn is absent."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.distributed.sharding import local
from mrreg.errors import check_int, check_number, check_share, check_type, invalid_state, quoted, warn
from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.masks.layers import MaskTarget
from mrreg.masks.sampling import draw_kept
from mrreg.masks.tensors import MaskedTensor, ZeroedTensor, own_table, tensors_of
from mrreg.module_utils import rebuild_attributes

NAME = "_thin_mask"  # under which a thin model has its mask
LAYER_NAME = "_layer_mask"  # and a module its `MultirateMask`
OPTIONS = "where", "groups", "targets", "overrides", "structure", "p", "k", "boost", "rescale", "flops"  # of a copy too

Place = tuple[nn.Module, str, dict[str, MaskedTensor]]


def _check_p(where: str, name: str, p: object) -> float:
    share = check_share(where, name, p)
    if share == 1:
        warn(f"{where}: with {name}=1 no weight is present on k - 1 of k steps: they learn in the others alone.")
    return share


def _option(name: str, check: Callable[[str, str, Any], Any]) -> Any:
    """Return a property that may change while training: it counts from the next step on."""

    def put(self: Any, value: Any) -> None:
        vars(self)[name] = check(self.where, name, value)

    return property(lambda self: vars(self)[name], put)


class Mask:
    """Units or entries of a module's tensors that are absent on all but the last step of a cycle.

    That of `thin` has groups, of which a fixed number of units is kept; a `MultirateMask` has targets, of which a share
    p is absent. A copy has no module until that gives itself in.
    """

    p = _option("p", _check_p)
    k = _option("k", check_int)
    rescale = _option("rescale", lambda where, name, value: check_type(where, name, value, bool, "True or False"))

    def __init__(
        self,
        where: str,
        groups: Iterable[UnitGroup] = (),
        targets: Iterable[MaskTarget] = (),
        overrides: Iterable[AttributeOverride] = (),
        *,
        k: int = 5,
        boost: float | None = None,
        rescale: bool = True,
        p: float = 0.0,
        structure: str = "units",
        flops: tuple[int, int] | None = None,
    ) -> None:
        self.where, self.structure, self.flops = where, structure, flops
        self.groups, self.targets, self.overrides = tuple(groups), tuple(targets), tuple(overrides)
        self.p = max(1 - group.kept / group.units for group in self.groups) if self.groups else p
        self.k, self.boost, self.rescale = k, boost, rescale
        self.tensors = tensors_of(self.groups, rescale) | {t.name: ZeroedTensor(t) for t in self.targets}
        self.block_group = next((group for group in self.groups if group.blocks), None)
        self.block_factor = self.block_group.units / self.block_group.kept if self.block_group and rescale else 1.0
        self._module: Callable[[], nn.Module | None] = lambda: None  # until a module has it
        self.running: Any = None  # the masked forward that holds the lock
        self._places: tuple[list[int], list[Place]] | None = None
        self.lock = RLock()  # of masked forwards, which change attributes that other threads read
        self._rest()

    def _rest(self) -> None:
        self.masking = self.attached = self.told = False  # told: that nothing drives it
        self.unseen = [*self.tensors.values()]  # by masked forwards
        self.step = object()  # which every optimizer step replaces
        self.drawn: Any = None  # what the subsets were drawn from
        self.off: frozenset[int] = frozenset()  # numbers of the blocks that are off in this cycle
        self.handle: Any = None  # that drives it, from which it has its path and the index of its first draw
        self.leave_step: Callable[[], None] = lambda: None  # one that failed
        self.path, self.first = "", 0
        self.plain: frozenset[int] | None = None  # ids of parameters whose update is a multiple of their gradient

    @property
    def boost(self) -> float:
        """Factor of the slow step: what was given, or the largest that `attach` has chosen; before that, k."""
        return self.boost_of(None)[0]

    @boost.setter
    def boost(self, boost: float | None) -> None:
        if boost is not None:
            boost = check_number(self.where, "boost", boost, "finite, at least 0", lambda b: 0 <= b < torch.inf)
        vars(self)["boost"] = boost

    def boost_of(self, parameter: Tensor | None) -> tuple[float, str]:
        """Return the factor of a parameter's slow step, or the largest, and why it is that."""
        if (given := vars(self)["boost"]) is not None:
            return given, "as given"
        if self.plain is None or id(parameter) in self.plain or (parameter is None and self.plain):
            return self.k, "k, for updates are multiples of the gradient (SGD without momentum)"
        return 1.0, "for updates are no multiples of the gradient, as with momentum"

    @property
    def masked(self) -> bool:
        """True while training forwards of the model leave units out."""
        return self.masking and (module := self._module()) is not None and module.training

    def __str__(self) -> str:
        boost = "None" if vars(self)["boost"] is None and self.plain is None else f"{self.boost:g}"
        options = f"k={self.k}, boost={boost}"
        if not self.targets:
            return f"thin: {len(self.groups)} groups lose up to {self.p:.0%} of their units, {options}"
        return f"mask(p={self.p}, structure={self.structure!r}, {options}, rescale={self.rescale})"

    def places(self, module: nn.Module) -> list[Place]:
        """The modules that have masked tensors, each with its table of them and their names in it; tied ones too."""
        inside = [id(each) for each in module.modules()]
        if self._places is None or self._places[0] != inside:  # one may have been replaced
            if lost := [name for name, tensor in self.tensors.items() if not tensor.fits(module)]:
                problem = f"the module was changed since it got its mask: {quoted(lost)} is gone, or has another shape"
                remedy = "Change layers first: remove the handle, call mrreg.unwrap(model), then mask and attach again."
                raise invalid_state(self.where, problem, remedy)
            masked = {id(tensor.of(module)): tensor for tensor in self.tensors.values() if tensor.cuts}
            places = []
            for inner, kind in product(module.modules(), ("_parameters", "_buffers")):
                if found := {name: masked[id(t)] for name, t in own_table(inner, kind).items() if id(t) in masked}:
                    places.append((inner, kind, found))
            self._places = inside, places
        return self._places[1]

    def check_fit(self, module: nn.Module) -> None:
        """Look for the modules again, and raise if the module has no longer what it had when it got the mask."""
        self._places = None
        self.places(module)

    def attributes(self, module: nn.Module) -> list[tuple[dict[str, Any], str, Any]]:
        """Return the attributes that change for a masked forward: dictionary, name, value."""
        return [(module.get_submodule(o.module).__dict__, o.attribute, o.value) for o in self.overrides]

    def root(self) -> nn.Module:
        """Return the module whose tensors are masked."""
        module = self._module()
        assert module is not None
        return module

    def masked_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the masked parameters with their names in the module."""
        module = self.root()
        for name, tensor in self.tensors.items():
            try:
                found = tensor.of(module)
            except KeyError:
                self.check_fit(module)  # says what is gone
                raise
            if isinstance(found, nn.Parameter):
                yield name, found

    def _draw(self, seed: int, cycle: int) -> None:
        """Draw what is present in a cycle."""
        module, cpu = self.root(), torch.device("cpu")
        self.check_fit(module)
        subsets: dict[str, Any] = {
            group.name: draw_kept((seed, index, cycle), group.kept, group.units, cpu)
            for index, group in enumerate(self.groups, self.first)
        }
        if blocks := self.block_group:
            self.off = frozenset(range(blocks.units)).difference(subsets[blocks.name].tolist())
        scale = 1 / (1 - self.p) if self.rescale and self.p < 1 else 1.0
        for index, target in enumerate(self.targets, self.first):
            subsets.setdefault(target.group, ((seed, index, cycle), self.p, scale))
        for tensor in self.tensors.values():
            tensor.draw(subsets, tensor.of(module))

    def set_phase(self, clock: int, seed: int, joint: bool = True) -> None:
        """Enter the phase after `clock` steps."""
        cycle, phase = divmod(clock, self.k)
        key = (seed, self.first, cycle, self.p) if self.p > 0 and (self.k > 1 or self.boost != 1 or not joint) else None
        if self.drawn != key:  # also for a joint step whose boost may be set yet
            self.off = frozenset()
            if key is not None:
                with torch.inference_mode(False):  # the next cycle may be drawn elsewhere into the same memory
                    self._draw(seed, cycle)
            self.drawn = key
        self.masking = self.p > 0 and (phase < self.k - 1 or not joint)
        self.attached, self.step = True, object()

    def warn_if_undriven(self, module: nn.Module) -> None:
        """Warn once that nothing drives this mask; what does not train needs none."""
        if not (self.attached or self.told) and self.p > 0 and torch.is_grad_enabled():
            self.belongs_to(module)
            if any(p.requires_grad for _, p in self.masked_parameters()):
                self.told = True
                warn(
                    f"{self.where}: no optimizer drives this mask, so it is dense. Call mrreg.attach(optimizer, model)."
                )

    def warn_if_unused(self) -> None:
        """Warn once of tensors with a gradient that no masked forward has read: theirs come from whole ones."""
        found = []
        for name, p in self.masked_parameters() if self.masking and self.unseen else ():
            tensor = self.tensors[name]
            if p.grad is not None and tensor in self.unseen and not tensor.off:
                found += [name] if local(p.grad).any() else []
        if found:
            self.unseen = []  # once
            kind = type(self.root()).__name__
            problem = f"the mask of a {kind} has no effect on {quoted(found)}: what is absent of it got a gradient"
            remedy = "Call the masked module itself in training mode, let its forward read parameters as attributes"
            warn(f"attach: {problem}. {remedy}, or mask the module that your loop calls.")

    def detach(self) -> None:
        """Become dense and undriven, also in what hooks of torch.nn.utils have computed from the parameters."""
        self._rest()
        if (module := self._module()) is not None:
            rebuild_attributes(module.modules())

    def belongs_to(self, module: nn.Module) -> None:
        """Know the module whose tensors are masked; what copy.copy makes of it has none of its own."""
        if self._module() is None:
            self._module = weakref.ref(module)

    def forget(self) -> None:
        """Hold nothing, whatever still drives the mask."""
        self.detach()
        self.p, self.groups, self.targets, self.tensors, self.block_group = 0.0, (), (), {}, None

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle as a mask that nothing drives; the module that has it gives itself in."""
        return {name: vars(self)[name] for name in OPTIONS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Mask.__init__(self, **state)


def find_mask(module: nn.Module, name: str = NAME) -> Mask | None:
    """Return the mask of a module; a copy of a module gets to know its own here."""
    mask: Mask | None = vars(module).get(name)
    if mask is not None:
        mask.belongs_to(module)
    return mask


def masks_of(module: nn.Module) -> list[Mask]:
    """Return the masks of this very module."""
    return [mask for name in (NAME, LAYER_NAME) if (mask := find_mask(module, name)) is not None]
