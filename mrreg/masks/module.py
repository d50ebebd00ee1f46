"""A module whose weights are partly held at zero for most of a cycle and then updated once with a larger step."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from mrreg.distributed.checks import SHARD_OUTSIDE
from mrreg.distributed.sharding import cut, is_sharded
from mrreg.errors import NoEffectWarning, invalid_state
from mrreg.masks import compact_forward as compact
from mrreg.masks.base import CyclicMask, ForwardRan, MoveReport
from mrreg.masks.functional_call import functional_call
from mrreg.masks.masked_tensor import MaskBuffers, as_floats, bits_dtype, masked
from mrreg.masks.options import CHANGEABLE, WHERE, check_boost, check_module, check_structure
from mrreg.masks.sampling import Key, draw_bits, draw_units
from mrreg.masks.targets import MaskTarget, Structure, find_targets
from mrreg.masks.wrapper import Wrapper
from mrreg.module_utils import parameter, rebuild_attributes

RUNTIME = {  # attributes that copies and pickles start without
    *("_masking", "_attached", "_warned", "_forward_ran", "_versions", "_moves", "_move_report", "_mask_buffers"),
    *("_drawn", "_drawn_p", "_bits", "_float_masks", "_kept_units", "_unsharded"),
}


class MultirateMask(Wrapper, CyclicMask):
    """Wraps a module and holds a random subset of its weights at zero on all but the last step of a cycle.

    It replaces nn.Dropout. A cycle has k optimizer steps. On the first k - 1 the slow entries of the weights count as
    zero, get exactly zero gradient and do not change by a bit, nor does the optimizer's state of their shape. On the
    last, the joint step, all weights are present and the slow ones move `boost` times as far as the optimizer says.
    The parameters themselves always hold their true values, evaluation mode always uses all of them, and the state
    dict is that of the plain module. `attach` an optimizer to drive the mask; until then it is dense.

    Cycle of k steps, slow subset S drawn at its start, update u of the optimizer:

        theta_F <- theta_F + u(theta_F, theta_S = 0)     on k - 1 masked steps
        theta_F <- theta_F + u;  theta_S <- theta_S + boost * u     on the joint step

    Args:
        module: The module to wrap. Masks do not nest.
        p: Probability that an entry is slow, in [0, 1]. Paper: de-activation probability.
        k: Optimizer steps per cycle, at least 1. Paper: k.
        parameters: Names, patterns or parameters to mask; None: weights of two or more dimensions, but not of norms.
        structure: Kind of draw: "weight" for single entries; "input" or "output" for whole units of each layer,
            exactly round(p * units) of them; "hidden" for the units between the two layers of
            Sequential(Linear, activation, Linear) or of the feed-forward half of a Transformer layer.
        rescale: Divide kept weights by 1 - p on masked steps. None: if whole units are drawn, as in nn.Dropout.
        boost: Factor of the slow step; None means k. Paper: h_S / h_F.

    Shape:
        Same as the wrapped module.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument is out of range, or nothing in the module can be masked.

    Example:
        >>> import torch, mrreg
        >>> from torch import nn
        >>> model = nn.Sequential(mrreg.MultirateMask(nn.Linear(4, 8), p=0.2, k=5), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> handle = mrreg.attach(optimizer, model)
        >>> model(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
        >>> sorted(model.state_dict())
        ['0.bias', '0.weight', '2.bias', '2.weight']

    Note:
        `named_parameters` says "0.module.weight" where the state dict says "0.weight".

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 5.
    """

    _warned: bool
    _drawn_p: float  # of the slow subset: the user may have set another since
    _bits: dict[str, Tensor]  # of each masked parameter: -1 kept, 0 slow; they broadcast over it
    _float_masks: dict[str, Tensor]  # the same memory, for compilers
    _kept_units: dict[str, compact.Units]  # where whole units without groups are drawn
    _unsharded: dict[str, Tensor | Key]  # of sharded parameters: bits of units, or what to draw entries from
    _versions: dict[str, tuple[int, int]]  # ids and versions of parameters in the last masked forward since a step
    _moves: int  # how often they moved since that step
    _move_report: MoveReport

    def __new__(cls, module: nn.Module | None = None, *_args: Any, **_options: Any) -> Self:
        """Choose the class that can be indexed and iterated over if the module can."""
        is_container = all(hasattr(type(module), name) for name in ("__getitem__", "__iter__", "__len__"))
        return super().__new__(MaskedContainer if cls is MultirateMask and is_container else cls)  # type: ignore[return-value]

    def __init__(
        self,
        module: nn.Module,
        p: float = 0.5,
        k: int = 5,
        *,
        parameters: Iterable[str | Tensor] | None = None,
        structure: Structure = "weight",
        rescale: bool | None = None,
        boost: float | None = None,
    ) -> None:
        super().__init__()
        check_module(module)
        check_structure(structure)
        self.p, self.k, self.boost, self.structure = p, k, boost, structure
        self.rescale = structure != "weight" if rescale is None else rescale
        self.targets = find_targets(module, parameters, structure)
        self.training = module.training  # train() would reach into the module, where layers may be frozen in eval mode
        self._detach()
        self.module = module

    def _get_name(self) -> str:
        return "MultirateMask"

    @property
    def boost(self) -> float:
        """Factor of the slow step; k unless it was given."""
        return self.k if self._boost is None else self._boost

    @boost.setter
    def boost(self, boost: float | None) -> None:
        self._boost = None if boost is None else check_boost(boost)

    def extra_repr(self) -> str:
        """Return the options for `print(model)`."""
        return f"p={self.p}, k={self.k}, structure={self.structure!r}, boost={self.boost}, rescale={self.rescale}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; in training mode, on masked steps, with its slow entries at zero."""
        if self._masking and self.training:
            return self._forward_masked(args, kwargs)
        if not self._attached and self.training:
            self._warn_undriven()
        return self.module(*args, **kwargs)

    def _forward_masked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # the one place that chooses how to compute: without the dropped units, as one product, or with masked weights
        self._forward_ran.masked = True
        module: Any = self._modules["module"]  # without the detour of __getattr__
        if units := self._kept_units:
            for t in filter(lambda t: t.name in units, self.targets):
                units[t.name].scale = self._scale(t)
            if compact.should_use(module, self.structure, units, args):
                return compact.forward(module, self.structure, units, args, kwargs)
        values, masks = {}, {}
        for t in self.targets:
            values[t.name] = value = parameter(module, t.name)
            masks[t.name] = self._forward_bits(t.name, value), self._scale(t), self._mask_buffers[t.name]
        self._warn_if_moved(values)
        if "weight" in masks and compact.is_bare_linear(module, args, kwargs):
            return compact.bare_linear(module, args[0], masks)
        weights = {name: masked(value, *masks[name]) for name, value in values.items()}
        return functional_call(weights, module, args, kwargs)

    def _forward_bits(self, name: str, value: Tensor) -> Tensor:
        """Return the bits of a whole parameter, where it is now."""
        if is_sharded(value):
            problem = "the parameters are still sharded in the forward"
            remedy = f"{SHARD_OUTSIDE} Call a module that it was applied to. Tensor parallel layers cannot be masked."
            raise invalid_state(WHERE, problem, remedy)
        source = self._unsharded.get(name)
        if source is None:
            if torch.compiler.is_compiling():
                return self._float_masks[name]
            return self._bits[name].to(value.device)  # another device in a replica
        # A parameter that is sharded between forwards is whole here, and this rank keeps the bits of its shard only.
        bits = source if isinstance(source, Tensor) else draw_bits(value, source, self._drawn_p)
        return bits.to(value.device, bits_dtype(value))

    def _scale(self, target: MaskTarget) -> float:
        """Return the factor of kept entries on masked steps."""
        return 1 / (1 - self._drawn_p) if self.rescale and target.rescaled and self._drawn_p < 1 else 1.0

    # state that `attach` drives

    def _detach(self) -> None:
        """Become dense, with nothing left of the masked weights."""
        vars(self).update(_masking=False, _attached=False, _warned=False, _forward_ran=ForwardRan())
        vars(self).update(_versions={}, _moves=0, _move_report=MoveReport())
        self._mask_buffers = {t.name: MaskBuffers() for t in self.targets}
        self._clear_mask()
        if "module" in self._modules:
            rebuild_attributes(self.module)

    def _clear_mask(self) -> None:
        """Have no slow subset."""
        vars(self).update(_drawn=None, _drawn_p=self.p, _bits={}, _float_masks={}, _kept_units={}, _unsharded={})

    def _root(self) -> nn.Module:
        return self.module

    def _masked_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return ((target.name, parameter(self.module, target.name)) for target in self.targets)

    def _draws(self) -> int:
        return len(self.targets)

    def _set_phase(self, clock: int, seed: int, first: int) -> None:
        super()._set_phase(clock, seed, first)
        self._forget_versions()

    def _draw(self, seed: int, first: int, cycle: int) -> None:
        """Draw the slow subset of a cycle; `first` is the index of the first masked parameter."""
        units: dict[str, Tensor] = {}
        self._clear_mask()
        for index, target in enumerate(self.targets, first):
            weight = parameter(self.module, target.name).detach()
            key = (seed, index, cycle)
            source: Tensor | Key = key
            if target.layout is None:
                drawn = target.keep_some(draw_bits(weight, key, self.p, self._mask_buffers[target.name].bits))
            else:
                if target.group not in units:
                    units[target.group] = draw_units(key, self.p, target.layout.units, weight.device)
                source = target.layout.spread(units[target.group], weight.shape)
                drawn = cut(source, weight)
                if target.layout.repeats == target.layout.groups == 1:
                    self._keep_units(target.name, target.layout.dim, units[target.group].nonzero().flatten())
            self._set_bits(target.name, drawn)
            if is_sharded(weight):
                self._unsharded[target.name] = source
        vars(self).update(_drawn_p=self.p)

    def _keep_units(self, name: str, dim: int, kept: Tensor) -> None:
        """Keep the indices of kept units on the device of their parameter."""
        weight, gradients = parameter(self.module, name), self._mask_buffers[name].gradients
        self._kept_units[name] = compact.Units(dim, kept.to(weight.device), 1.0, gradients)
        self._kept_units[name].keep({dim: kept}, weight)

    def _set_bits(self, name: str, bits: Tensor) -> None:
        """Keep bits on the device of their parameter, as wide as its entries."""
        weight = parameter(self.module, name)
        self._bits[name] = bits.to(weight.device, bits_dtype(weight))
        self._float_masks[name] = as_floats(self._bits[name], weight)

    def _warn_undriven(self) -> None:
        """Warn once that nothing drives this mask; without gradients nobody trains (`update_bn` of an average)."""
        if not self._warned and self.p > 0 and not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self._warned = True
            message = f"{WHERE}: no optimizer drives this mask, so it is dense. Call mrreg.attach(optimizer, model)."
            warnings.warn(message, NoEffectWarning, stacklevel=4)

    def _warn_if_moved(self, values: Mapping[str, Tensor]) -> None:
        """Warn once per optimizer that weights moved after a backward pass, but in no step that it counted."""
        if self._move_report.given or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        before = self._versions
        vars(self)["_versions"] = {name: (id(p), p._version) for name, p in values.items() if p.is_leaf}
        trained = [buffers for buffers in self._mask_buffers.values() if buffers.backward_ran]
        for buffers in trained:
            buffers.backward_ran = False
        now = self._versions.items()
        if trained and any(name in before and before[name] != at and before[name][0] == at[0] for name, at in now):
            vars(self)["_moves"] += 1
        if self._moves > self._move_report.tolerated:
            self._move_report.given = True
            problem = "masked weights moved between two forwards, but no step of the attached optimizer was seen"
            remedy = "Attach the optimizer whose step() moves them; until then the masks stand still."
            warnings.warn(f"{WHERE}: {problem}. {remedy}", NoEffectWarning, stacklevel=5)

    def _forget_versions(self) -> None:
        vars(self).update(_versions={}, _moves=0)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, CHANGEABLE[name](value) if name in CHANGEABLE else value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles: a mask that nothing drives."""
        return {name: value for name, value in vars(self).items() if name not in RUNTIME}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._detach()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        """Move and cast as any module does, and the bits with their parameters."""
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        for name, bits in self._bits.items():
            self._set_bits(name, bits)
        for name, units in self._kept_units.items():
            self._keep_units(name, units.dim, units.kept)
        self._versions = {}
        return self


class MaskedContainer(MultirateMask):
    """A mask around a container of layers, which is one itself: as in `model[0]` after `swap_dropout`."""

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)  # type: ignore[call-overload, no-any-return]

    def __len__(self) -> int:
        return len(self.module)  # type: ignore[arg-type]
