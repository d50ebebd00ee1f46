"""One forward, cut at every operation that mixes channels, so that autograd shows which of them reach which others."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mrreg.masks.groups import Kind
from mrreg.thinning.substitutes import LEAKY, RECURRENT, unrolled
from mrreg.thinning.twin import Inputs, Operations, floats_in, named_tensors, outputs_in


class Channels(NamedTuple):
    """Neighbouring positions along a dimension of a parameter: one for each channel."""

    name: str
    dim: int
    start: int
    size: int


@dataclass(eq=False)
class MixingOp:
    """A product with a weight, whose output is cut off from its input."""

    kind: Kind  # of its output channels, unless more is known of them
    rows: Channels  # the output channels in the weight
    also: list[Channels]  # in other parameters with a position for each output channel, such as the bias
    columns: Channels | None  # the input channels; an embedding has none
    taken: Tensor  # its input
    taken_dim: int  # that counts channels
    made: Tensor  # a leaf of the graph that is added to its output
    made_dim: int


WRITES = re.compile(r"\w*[a-z0-9]_|__(i[a-z]+|setitem)__")  # names of functions that change their first argument
SUMS = ("add", "add_", "__add__", "__iadd__", "__radd__")
MODERATE = 3.0  # at which no activation is flat


def moderate(values: Tensor) -> Tensor:
    """Shrink large values as a whole: an activation that they saturate would seem to let no channel through."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    return values * (MODERATE / largest) if MODERATE < largest < float("inf") else values


class Recording(TorchFunctionMode):
    """One forward of a copy: its mixing operations in order, each cut off, its sums, inputs and outputs.

    Functions under which a channel could be dead, and inputs under which one could be saturated, are replaced.
    """

    def __init__(self, twin: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self._twin, self._given, self.others = twin, inputs, named_tensors(twin)  # parameters and buffers
        self.ops, self.sums, self.outputs = list[MixingOp](), list[tuple[Tensor, Tensor]](), list[Tensor]()
        self.inputs = floats_in(inputs)
        for tensor in self.others.values():
            tensor.requires_grad_(True)
        for tensor in self.inputs:
            tensor.copy_(moderate(tensor)).requires_grad_(True)
        self._owners = {t.untyped_storage().data_ptr(): (name, t) for name, t in self.others.items() if t.numel()}

    def run(self) -> "Recording":
        """Run the copy once."""
        with Operations(), self:
            output = self._twin(*self._given.args, **self._given.kwargs)
        self.outputs = [tensor for tensor in outputs_in(output) if tensor.requires_grad]
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if WRITES.fullmatch(name) and self._is_buffer(args[0]):
            args = args[0].clone(), *args[1:]  # what was computed from the buffer is still to be differentiated
        if name.startswith("fake_quantize"):  # which has no gradient for its buffers
            args = tuple(each.detach() if self._is_buffer(each) else each for each in args)
        if name in SUMS and len(args) > 1:
            self._note_sum(args[0].clone() if name in ("add_", "__iadd__") else args[0], args[1])
        if name in LEAKY and args and args[0].is_floating_point():
            return LEAKY[name](func, *args, **kwargs)
        if name in RECURRENT:
            return unrolled(name, self._linear, *args)
        layout = READERS[name](*args, **kwargs) if name in READERS else None
        return self._product(name, partial(func, *args, **kwargs), layout)

    def _is_buffer(self, value: Any) -> bool:
        storage = value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0
        return storage in self._owners and not isinstance(self._owners[storage][1], nn.Parameter)

    def _note_sum(self, *pair: Any) -> None:
        activations = [isinstance(x, Tensor) and x.requires_grad and not isinstance(x, nn.Parameter) for x in pair]
        if all(activations) and pair[0].shape == pair[1].shape and pair[0].dim() > 1:
            self.sums.append(pair)

    def _linear(self, taken: Tensor, weight: Tensor, bias: Tensor | None, *more: Tensor) -> Any:
        layout = taken, weight, (bias, *more), (0, 1, -1, -1)
        return self._product("linear", partial(F.linear, taken, weight, bias), layout)

    def _product(self, name: str, compute: Callable[[], Any], layout: "Layout | None") -> Any:
        """Compute a product, and note it if its weight can be read."""
        if layout is None:
            return compute()
        taken, weight, also, (row, column, taken_dim, made_dim) = layout
        rows = self._channels(weight, row)
        if not rows:
            return compute()
        with torch.no_grad():
            result = moderate(compute())
        made = result.new_zeros(()).expand(result.shape).detach().requires_grad_(True)  # takes no memory
        columns = [] if column is None else self._channels(weight, column)
        others = rows[1:] + [channels for each in also if each is not None for channels in self._channels(each, 0)]
        kind: Kind = "heads" if name == "einsum" and weight.dim() > 2 else "hidden"
        kind = "channels" if name.startswith("conv") else kind
        self.ops.append(
            MixingOp(kind, rows[0], others, columns[0] if columns else None, taken, taken_dim, made, made_dim)
        )
        return result + made

    def _channels(self, weight: Tensor, dim: int) -> list[Channels]:
        """Find the dimension of a parameter, or of those it is computed from, that a dimension of a weight is along."""
        name, owner = self._owners.get(weight.untyped_storage().data_ptr(), ("", None))
        if not weight.is_floating_point():
            return []
        if owner is None:
            return self._computed(weight, dim % weight.dim()) if weight.grad_fn is not None else []
        if weight.shape == owner.shape and weight.stride() == owner.stride():
            return [Channels(name, dim % weight.dim(), 0, weight.shape[dim])]
        for each, (size, stride) in enumerate(zip(owner.shape, owner.stride(), strict=True)):
            start = weight.storage_offset() // stride % size
            if stride == weight.stride(dim) and start + weight.shape[dim] <= size:
                return [Channels(name, each, int(start), weight.shape[dim])]
        return []

    def _computed(self, weight: Tensor, dim: int) -> list[Channels]:
        sources = [*(op.made for op in self.ops), *self.inputs, *self.others.values()]
        grads = torch.autograd.grad(weight.sum(), sources, retain_graph=True, allow_unused=True)
        fixed = len(sources) - len(self.others)
        if any(grad is not None for grad in grads[:fixed]):
            return []
        names = [name for name, grad in zip(self.others, grads[fixed:], strict=True) if grad is not None]
        names.sort(key=lambda name: -self.others[name].numel())
        fits = [name for name in names if self.others[name].shape[dim : dim + 1] == weight.shape[dim : dim + 1]]
        made = fits and self.others[fits[0]].shape == weight.shape  # else it is no product that can be read
        return [Channels(name, dim, 0, weight.shape[dim]) for name in fits] if made else []


# The layout of a product: input, weight, what is added to each output channel, and (output channels of the weight, its
# input channels, channels of the input, channels of the output) as dimensions; None where it is not such a product.
Layout = tuple[Tensor, Tensor, Sequence[Tensor | None], tuple[int, int | None, int, int]]


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Layout | None:
    return (input, weight, (bias,), (0, 1, -1, -1)) if weight.dim() == 2 else None


def _matmul(input: Tensor, other: Tensor) -> Layout | None:
    if _is_stored(input):
        return (other, input, (), (0, 1, -2, -2)) if input.dim() == 2 and other.dim() > 1 else None
    stored = other.is_leaf or (other._base is not None and other._base.is_leaf)
    return (input, other, (), (1, 0, -1, -1)) if stored and other.dim() == 2 and input.dim() > 1 else None


def _bmm(input: Tensor, mat2: Tensor) -> Layout | None:
    return (input, mat2, (), (2, 1, 2, 2)) if _is_stored(mat2) else None


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, **scales: Any) -> Layout | None:
    return (mat1, mat2, (input,), (1, 0, -1, -1)) if input.dim() == 1 and not scales else None


def _einsum(equation: str, *operands: Any) -> Layout | None:
    """Take the first of several letters, such as that of the heads, for the channels."""
    operands = tuple(operands[0]) if isinstance(operands[0], list | tuple) else operands
    names, _, out = equation.replace(" ", "").partition("->")
    stored = list(map(_is_stored, operands))
    if len(stored) != 2 or sum(stored) != 1 or "." in names or not out:
        return None
    letters, at = names.split(","), stored.index(True)
    w, x, weight, taken = letters[at], letters[1 - at], operands[at], operands[1 - at]
    summed, free = [c for c in w if c in x and c not in out], [c for c in w if c in out and c not in x]
    shared, by_head = len(w) > len(summed) + len(free), len(w) == 2 and len(x) > 3  # as a table of positions is read
    if shared or by_head or not (summed and free):
        return None
    return taken, weight, (), (w.index(free[0]), w.index(summed[0]), x.index(summed[0]), out.index(free[0]))


def _is_stored(value: Tensor) -> bool:
    """Tell if a tensor is a parameter or a view of one: either factor may be the weight."""
    return isinstance(value, nn.Parameter) or isinstance(value._base, nn.Parameter)


def _embedding(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> Layout | None:
    return input, weight, (), (1, None, -1, -1)


def _convolution(rows: int, columns: int) -> Callable[..., Layout | None]:
    def read(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, groups: int = 1, **_: Any
    ) -> Layout | None:
        channel = 1 - weight.dim()
        grouped = groups != 1 or (len(rest) > 3 and rest[3] != 1)
        return None if grouped else (input, weight, (bias,), (rows, columns, channel, channel))

    return read


READERS: dict[str, Callable[..., Layout | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "__matmul__": _matmul,
    "mm": _matmul,
    "bmm": _bmm,
    "addmm": _addmm,
    "einsum": _einsum,
    **dict.fromkeys(("embedding", "embedding_bag"), _embedding),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution(0, 1)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _convolution(1, 0)),
}
