"""Parameters of which single entries, or whole units that keep their places, are absent: those count as zero."""

from typing import Any

import torch
from torch import Tensor, nn

from mrreg.distributed.sharding import cut, is_sharded, local, window
from mrreg.masks.kept_entries import PresentEntries
from mrreg.masks.masked_tensor import ReusableBuffer, as_bits, bits_dtype
from mrreg.masks.sampling import Key, draw_bits, draw_units
from mrreg.masks.targets import MaskTarget
from mrreg.module_utils import parameter


class DrawnTensor:
    """One parameter whose absent entries stay in their places; it answers what a `ThinTensor` does.

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


def masked(value: Tensor, bits: Tensor, memory: ReusableBuffer) -> Tensor:
    """Return a tensor with zeros at absent entries, also for NaN and inf, which get a gradient of exactly zero."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return torch.where(bits != 0, value, 0)
    return _Masked.apply(value, bits, memory)  # type: ignore[no-any-return]


class _Masked(torch.autograd.Function):
    """value & bits, whose derivative is the same function of the gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, bits: Tensor, memory: ReusableBuffer) -> Tensor:
        ctx.bits, ctx.memory = bits, memory
        return as_bits(value).bitwise_and(bits).view(value.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.memory.used = True
        if torch.is_grad_enabled() or torch._C._functorch.is_legacy_batchedtensor(grad):
            return torch.where(ctx.bits != 0, grad, 0), None, None
        return as_bits(grad).bitwise_and(ctx.bits).view(grad.dtype), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return torch.where(ctx.bits != 0, tangent, 0)
