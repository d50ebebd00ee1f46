"""A module whose weights are partly held at zero for most of a cycle and then updated once with a larger step."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from mrreg.distributed.checks import SHARD_OUTSIDE, is_fully_sharded
from mrreg.distributed.sharding import cut, is_sharded
from mrreg.errors import NoEffectWarning, check_int, check_number, invalid_argument, invalid_state
from mrreg.masks import compact_forward as compact
from mrreg.masks.functional_call import functional_call
from mrreg.masks.masked_tensor import Mask, MaskBuffers, as_floats, bits_dtype, masked
from mrreg.masks.sampling import Key, draw_bits, draw_units
from mrreg.masks.targets import STRUCTURES, MaskTarget, Structure, find_targets
from mrreg.masks.wrapper import Wrapper
from mrreg.module_utils import check_materialized, parameter

WHERE = "MultirateMask"
LINEAR_FORWARD = nn.Linear.forward  # others may patch the class later


def _true_or_false(rescale: object) -> bool:
    if not isinstance(rescale, bool):
        raise invalid_argument(TypeError, WHERE, "rescale", "True or False", rescale)
    return rescale


CHECKS: dict[str, Callable[[Any], Any]] = {  # of options that may change while training
    "p": lambda p: check_number(WHERE, "p", p, "in [0, 1]", lambda p: 0 <= p <= 1),
    "k": lambda k: check_int(WHERE, "k", k),
    "rescale": _true_or_false,
}


class ForwardRan:
    """Whether a masked forward has run; an object of its own, so that graphs and replicas of a mask can say so too."""

    masked = False


class MultirateMask(Wrapper):
    """Wraps a module; a random subset of its weights is at zero on all but the last step of a cycle.

    It replaces nn.Dropout. A cycle has k optimizer steps. On the first k - 1 the slow entries of the weights count as
    zero, get exactly zero gradient and do not change by a bit, nor does the optimizer's state of their shape. On the
    last, the joint step, all weights are present and the slow ones move `boost` times as far as the optimizer says.
    The parameters themselves always hold their true values, evaluation mode always uses all of them, and the state
    dict is that of the plain module. `attach` an optimizer to drive the mask; until then it is dense.

    Cycle of k steps, slow subset S drawn at its start, update u of the optimizer:

        theta_F <- theta_F + u(theta_F, theta_S = 0)     on k - 1 masked steps
        theta_F <- theta_F + u;  theta_S <- theta_S + boost * u     on the joint step

    Args:
        module: What is wrapped. Masks do not nest.
        p: Chance that an entry is slow, in [0, 1]. Paper: de-activation probability.
        k: Optimizer steps per cycle, at least 1. Paper: k.
        parameters: Names, glob patterns or parameters to mask; by default every weight with two or more dimensions
            that is not of a normalization layer.
        structure: What is drawn: "weight" for single entries; "input" or "output" for whole units of each layer,
            exactly round(p * units) of them; "hidden" for the units between the two layers of
            Sequential(Linear, activation, Linear) or of the feed-forward half of a Transformer layer.
        rescale: Divide the kept weights by 1 - p on masked steps. None: for whole units, as nn.Dropout does, and not
            for single weights, as in the paper.
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

    _drawn: tuple[Any, ...] | None  # what `_bits` were drawn from
    _drawn_p: float  # the p in it: the user may have set another since
    _bits: dict[str, Tensor]
    _float_masks: dict[str, Tensor]  # the same memory, for compilers
    _kept_units: dict[str, tuple[int, Tensor]]
    _unsharded: dict[str, Tensor | Key]  # of sharded parameters: bits of units, or what to draw entries from

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
        _check_module(module)
        if not isinstance(structure, str) or structure not in STRUCTURES:
            kind = ValueError if isinstance(structure, str) else TypeError
            raise invalid_argument(kind, WHERE, "structure", f"one of {', '.join(map(repr, STRUCTURES))}", structure)
        self.p, self.k, self.boost, self.structure = p, k, boost, structure
        self.rescale = structure != "weight" if rescale is None else rescale
        self.targets = find_targets(module, parameters, structure)
        self.training = module.training  # train() would reach into the module, where layers may be frozen in eval mode
        self._detach()
        self.module = module

    @property
    def boost(self) -> float:
        """Factor of the slow step; k unless it was given."""
        return self.k if self._boost is None else self._boost

    @boost.setter
    def boost(self, boost: float | None) -> None:
        self._boost = None if boost is None else check_number(WHERE, "boost", boost, "finite, at least 0", _is_factor)

    def extra_repr(self) -> str:
        """What the wrapper adds to the module, for `print(model)`."""
        return f"p={self.p}, k={self.k}, structure={self.structure!r}, boost={self.boost}, rescale={self.rescale}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; in training mode, on masked steps, with its slow entries at zero."""
        if self._masking and self.training:
            return self._forward_masked(args, kwargs)
        if not self._attached and self.training:
            self._warn_undriven()
        return self.module(*args, **kwargs)

    def _forward_masked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The one place where a masked step chooses how it computes.

        Here `self._bits[name]` has the bit pattern of each masked parameter (-1 kept, 0 slow; it broadcasts over the
        parameter), `self._kept_units[name]` the (dimension, indices of the kept units) of each one drawn by ungrouped
        units, and `self._scale(target)` the factor of its kept entries.
        """
        self._forward_ran.masked = True
        module: Any = self._modules["module"]  # without the detour of __getattr__
        if self._kept_units:
            scales = {t.name: self._scale(t) for t in self.targets}
            units = {name: compact.Units(*kept, scales[name]) for name, kept in self._kept_units.items()}
            if compact.should_use(module, self.structure, units, args):
                return compact.forward(module, self.structure, units, args, kwargs)
        values, masks = {}, {}
        for t in self.targets:
            values[t.name] = value = parameter(module, t.name)
            masks[t.name] = self._forward_bits(t.name, value), self._scale(t), self._mask_buffers[t.name]
        if "weight" in masks and _is_bare_linear(module, args, kwargs):
            return _bare_linear(module, args[0], masks)
        weights = {name: masked(value, *masks[name]) for name, value in values.items()}
        return functional_call(weights, module, args, kwargs)

    def _forward_bits(self, name: str, value: Tensor) -> Tensor:
        """The bits of a whole parameter; of one that is sharded between forwards, they are drawn at every forward."""
        if is_sharded(value):
            problem = "the parameters are still sharded in the forward"
            remedy = f"{SHARD_OUTSIDE} Call a module that it was applied to. Tensor parallel layers cannot be masked."
            raise invalid_state(WHERE, problem, remedy)
        source = self._unsharded.get(name)
        if source is None:
            return self._float_masks[name] if torch.compiler.is_compiling() else self._bits[name]
        bits = source if isinstance(source, Tensor) else draw_bits(value, source, self._drawn_p)
        return bits.to(value.device, bits_dtype(value))

    def _scale(self, target: MaskTarget) -> float:
        """What kept entries are multiplied by on masked steps."""
        return 1 / (1 - self._drawn_p) if self.rescale and target.rescaled and self._drawn_p < 1 else 1.0

    # what `attach` drives

    def _detach(self) -> None:
        """Become dense and undriven."""
        self._masking = False  # whether forwards in training mode are masked
        self._attached = False
        self._warned = False
        self._forward_ran = ForwardRan()
        self._clear_mask()
        self._mask_buffers = {t.name: MaskBuffers() for t in self.targets}

    def _clear_mask(self) -> None:
        """Have no slow subset."""
        vars(self).update(self._nothing_drawn())

    def _nothing_drawn(self) -> dict[str, Any]:
        """The attributes that a draw sets, without one."""
        return {
            "_drawn": None,
            "_drawn_p": self.p,
            "_bits": {},
            "_float_masks": {},
            "_kept_units": {},
            "_unsharded": {},
        }

    def _set_phase(self, clock: int, seed: int, first: int) -> None:
        """Enter the phase after `clock` steps; `first` is the index of the first masked parameter."""
        cycle, phase = divmod(clock, self.k)
        masking = self.p > 0 and phase < self.k - 1
        if self.p > 0 and (self.k > 1 or self.boost != 1):  # also for a joint step whose boost may be set yet
            if self._drawn != (seed, first, cycle, self.p):
                with torch.inference_mode(False):  # the next cycle may be drawn elsewhere into the same memory
                    self._draw(seed, first, cycle)
        elif self._drawn is not None:
            self._clear_mask()
        vars(self).update(_masking=masking, _attached=True)  # at every step, and Module's own __setattr__ is slow

    def _draw(self, seed: int, first: int, cycle: int) -> None:
        """Draw the slow subset of a cycle."""
        units: dict[str, Tensor] = {}
        self._clear_mask()
        for index, target in enumerate(self.targets, first):
            weight = parameter(self.module, target.name).detach()
            key = (seed, index, cycle)
            source: Tensor | Key = key
            if target.layout is None:
                drawn = draw_bits(weight, key, self.p, self._mask_buffers[target.name].bits)
            else:
                if target.group not in units:
                    units[target.group] = draw_units(key, self.p, target.layout.units, weight.device)
                source = target.layout.spread(units[target.group], weight.shape)
                drawn = cut(source, weight)
                if target.layout.repeats == target.layout.groups == 1:
                    self._kept_units[target.name] = target.layout.dim, units[target.group].nonzero().flatten()
            self._set_bits(target.name, drawn)
            if is_sharded(weight):
                self._unsharded[target.name] = source
        vars(self).update(_drawn=(seed, first, cycle, self.p), _drawn_p=self.p)

    def _set_bits(self, name: str, bits: Tensor) -> None:
        """Keep bits where their parameter is, as wide as its entries."""
        weight = parameter(self.module, name)
        self._bits[name] = bits.to(weight.device, bits_dtype(weight))
        self._float_masks[name] = as_floats(self._bits[name], weight)

    def _warn_undriven(self) -> None:
        """Say once that nothing drives this mask; without gradients nobody trains (`update_bn` of an average)."""
        if not self._warned and self.p > 0 and not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self._warned = True
            message = f"{WHERE}: no optimizer drives this mask, so it is dense. Call mrreg.attach(optimizer, model)."
            warnings.warn(message, NoEffectWarning, stacklevel=4)

    def __setattr__(self, name: str, value: Any) -> None:
        """Options are checked whenever they are set."""
        super().__setattr__(name, CHECKS[name](value) if name in CHECKS else value)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles get: a mask that nothing drives."""
        undriven = {
            "_masking": False,
            "_attached": False,
            "_warned": False,
            "_forward_ran": ForwardRan(),
        } | self._nothing_drawn()
        return self.__dict__ | undriven | {"_mask_buffers": {t.name: MaskBuffers() for t in self.targets}}

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        """Move and cast as any module does; the bits follow their parameters."""
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        for name, bits in self._bits.items():
            self._set_bits(name, bits)
        self._kept_units = {n: (dim, kept.to(self._bits[n].device)) for n, (dim, kept) in self._kept_units.items()}
        return self


def _is_bare_linear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True for one matrix product that nobody watches: a module call would cost more than the mask."""
    if type(module) is not nn.Linear or nn.Linear.forward is not LINEAR_FORWARD or kwargs or len(args) != 1:
        return False
    return compact.is_plain(module) and not nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]


def _bare_linear(module: nn.Module, x: Tensor, masks: Mapping[str, Mask]) -> Tensor:
    """Return the output of a Linear whose weight, and maybe bias, is masked."""
    bias: Tensor | None = module._parameters["bias"]
    if bias is not None and "bias" in masks:
        bias = masked(bias, *masks["bias"])
    weight = masked(parameter(module, "weight"), *masks["weight"], grad_is_exclusive=True)
    return functional.linear(x, weight, bias)


def _check_module(module: object) -> None:
    """Masks wrap modules, and do not nest."""
    if not isinstance(module, nn.Module):
        raise invalid_argument(TypeError, WHERE, "module", "an nn.Module", module)
    check_materialized(WHERE, "module", module)
    for name, inner in module.named_modules():
        if is_fully_sharded(inner):
            rule = "without fully_shard inside"
            raise invalid_argument(ValueError, WHERE, "module", rule, name or type(inner).__name__, SHARD_OUTSIDE)
        if isinstance(inner, MultirateMask):
            raise invalid_argument(
                ValueError, WHERE, "module", "without masks inside", name or WHERE, "Masks do not nest."
            )


def _is_factor(boost: float) -> bool:
    return 0 <= boost < float("inf")
