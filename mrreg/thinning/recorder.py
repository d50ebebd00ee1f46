"""One forward, cut at every operation that mixes channels, so that autograd shows which of them reach which others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mrreg.errors import add_note
from mrreg.masks.checkpoints import CheckpointGuard
from mrreg.thinning.double_copy import WHERE, DoublePrecision, Inputs, floats_in, named_tensors, outputs_in


class Channels(NamedTuple):
    """Neighbouring positions along a dimension of a parameter: one for each channel."""

    name: str
    dim: int
    start: int
    size: int


@dataclass(eq=False)
class MixingOp:
    """A product with a weight, whose output is cut off from its input.

    Args:
        rows: Positions of the output channels in the weight.
        bias: The same for its bias.
        columns: Positions of its input channels; an embedding has none.
        taken: Its input, whose dimension `taken_dim` counts channels.
        made: A leaf of the graph that is added to its output, whose dimension `made_dim` counts channels.
    """

    rows: Channels
    bias: Channels | None
    columns: Channels | None
    taken: Tensor
    taken_dim: int
    made: Tensor
    made_dim: int


@dataclass(eq=False)
class Recording:
    """One recorded forward: its mixing operations in order, its sums, its inputs and its outputs."""

    ops: list[MixingOp]
    sums: list[tuple[Tensor, Tensor]]
    inputs: list[Tensor]
    outputs: list[Tensor]
    others: dict[str, Tensor]  # parameters and buffers


def record(twin: nn.Module, inputs: Inputs) -> Recording:
    """Run the copy once, with activations under which no channel is dead, and return its cut graph.

    The inputs belong to that graph from now on.
    """
    others = named_tensors(twin)
    for tensor in others.values():
        tensor.requires_grad_(True)
    entering = floats_in(inputs)
    for tensor in entering:
        tensor.requires_grad_(True)
    mode = _Recorder(others)
    try:
        with DoublePrecision(), mode:  # type: ignore[no-untyped-call]
            output = twin(*inputs.args, **inputs.kwargs)
    except Exception as error:
        call = "a tuple gives several arguments, a mapping keywords, a tensor one argument"
        add_note(error, f"thin: raised by the forward of a float64 copy of the model on example_inputs ({call}).")
        raise
    mode.guard.check_output((output, [op.taken for op in mode.ops]))
    leaving = [tensor for tensor in outputs_in(output) if tensor.requires_grad]
    return Recording(mode.ops, mode.sums, entering, leaving, others)


class _Recorder(TorchFunctionMode):
    """Notes and cuts mixing operations, and replaces functions under which a channel could be dead."""

    def __init__(self, others: dict[str, Tensor]) -> None:
        super().__init__()
        self.ops: list[MixingOp] = []
        self.sums: list[tuple[Tensor, Tensor]] = []
        self.guard = CheckpointGuard(WHERE)
        self._owners = {t.untyped_storage().data_ptr(): (name, t) for name, t in others.items() if t.numel()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if pair := summands(func, args):
            one, two = pair
            self.sums.append((one.clone() if name in ("add_", "__iadd__") else one, two))
        if name in LEAKY and args and args[0].is_floating_point():
            return LEAKY[name](func, *args, **kwargs)
        read = READERS.get(name)
        layout = read(*args, **kwargs) if read else None
        if layout is None:
            return func(*args, **kwargs)
        taken, weight, bias, (row, column, taken_dim, made_dim) = layout
        rows = self._channels(weight, row)
        if rows is None:
            return func(*args, **kwargs)
        self.guard.note_read()
        with torch.no_grad():
            result = func(*args, **kwargs)
        made = result.new_zeros(()).expand(result.shape).detach().requires_grad_(True)  # takes no memory
        columns = None if column is None else self._channels(weight, column)
        shift = None if bias is None else self._channels(bias, 0)
        self.ops.append(MixingOp(rows, shift, columns, taken, taken_dim, made, made_dim))
        return result + made

    def _channels(self, weight: Tensor, dim: int) -> Channels | None:
        """Find the dimension of a parameter that a dimension of a view of it runs along."""
        name, owner = self._owners.get(weight.untyped_storage().data_ptr(), ("", None))
        if owner is None or not weight.is_floating_point():
            return None
        if weight.shape == owner.shape and weight.stride() == owner.stride():
            return Channels(name, dim % weight.dim(), 0, weight.shape[dim])
        for each, (size, stride) in enumerate(zip(owner.shape, owner.stride(), strict=True)):
            start = weight.storage_offset() // stride % size
            if stride == weight.stride(dim) and start + weight.shape[dim] <= size:
                return Channels(name, each, int(start), weight.shape[dim])
        return None


SUMS = ("add", "add_", "__add__", "__iadd__", "__radd__")


def summands(func: Any, args: tuple[Any, ...]) -> tuple[Tensor, Tensor] | None:
    """Return what a call adds, if it adds two activations of one shape."""
    if getattr(func, "__name__", "") not in SUMS or len(args) < 2:
        return None
    one, two = args[:2]
    activations = all(
        isinstance(each, Tensor) and each.requires_grad and not isinstance(each, nn.Parameter) for each in (one, two)
    )
    return (one, two) if activations and one.shape == two.shape and one.dim() > 1 else None


# The layout of a product: input, weight, bias, and (output channels of the weight, its input channels, channels of the
# input, channels of the output) as dimensions; None where it is not such a product.
Layout = tuple[Tensor, Tensor, Tensor | None, tuple[int, int | None, int, int]]


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Layout | None:
    return (input, weight, bias, (0, 1, -1, -1)) if weight.dim() == 2 else None


def _matmul(input: Tensor, other: Tensor) -> Layout | None:
    if isinstance(input, nn.Parameter) or isinstance(input._base, nn.Parameter):
        return (other, input, None, (0, 1, -2, -2)) if input.dim() == 2 and other.dim() > 1 else None
    return (input, other, None, (1, 0, -1, -1)) if other.dim() == 2 and input.dim() > 1 else None


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, **scales: Any) -> Layout | None:
    return (mat1, mat2, input, (1, 0, -1, -1)) if input.dim() == 1 and not scales else None


def _embedding(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> Layout | None:
    return input, weight, None, (1, None, -1, -1)


def _convolution(rows: int, columns: int) -> Callable[..., Layout | None]:
    def read(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, groups: int = 1, **_: Any
    ) -> Layout | None:
        channel = 1 - weight.dim()
        grouped = groups != 1 or (len(rest) > 3 and rest[3] != 1)
        return None if grouped else (input, weight, bias, (rows, columns, channel, channel))

    return read


READERS: dict[str, Callable[..., Layout | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "__matmul__": _matmul,
    "mm": _matmul,
    "addmm": _addmm,
    "embedding": _embedding,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution(0, 1)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _convolution(1, 0)),
}


def _leaky(_: Any, x: Tensor, *__: Any, **___: Any) -> Tensor:
    return F.leaky_relu(x, 0.3)


def _clamp(func: Any, x: Tensor, *bounds: Any, **named: Any) -> Tensor:
    lower = named.get("min", bounds[0] if bounds else None)
    zero = isinstance(lower, int | float) and lower == 0  # as relu, others guard logarithms and divisions
    return F.leaky_relu(x, 0.3) if zero else func(x, *bounds, **named)


def _prelu(_: Any, x: Tensor, weight: Tensor) -> Tensor:
    slope = weight.reshape(-1, *[1] * (x.dim() - 2)) if x.dim() > 1 else weight
    return F.leaky_relu(x, 0.3) + slope * x


def _leaky_pool(dims: int) -> Callable[..., Any]:
    """Add the mean over positions to a maximum, which alone would hide the slope of a PReLU under it."""

    def pool(func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        value = func(x, *args, **kwargs)
        return value + x.mean(tuple(range(-dims, 0)), keepdim=True) if isinstance(value, Tensor) else value

    return pool


def _batch_norm(
    func: Any, x: Tensor, mean: Any, variance: Any, weight: Any = None, bias: Any = None, *rest: Any, **named: Any
) -> Any:
    """Normalize by a formula: autograd's has no gradient for the running statistics."""
    training = named.get("training", rest[0] if rest else False)
    if training or mean is None:
        return func(x, mean, variance, weight, bias, *rest, **named)
    shape = (-1, *[1] * (x.dim() - 2))
    scale = (variance + 1e-5).rsqrt() if weight is None else weight * (variance + 1e-5).rsqrt()
    shift = -mean * scale if bias is None else bias - mean * scale
    return x * scale.reshape(shape) + shift.reshape(shape)


# A unit that relu holds at zero, or that is never the largest, would seem to reach nothing.
LEAKY: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("relu", "relu_", "relu6", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_"), _leaky),
    **dict.fromkeys(("hardswish", "hardsigmoid", "threshold", "threshold_", "hardshrink"), _leaky),
    **dict.fromkeys(("clamp", "clamp_min", "clip"), _clamp),
    "prelu": _prelu,
    "batch_norm": _batch_norm,
    **{f"{kind}max_pool{d}d": _leaky_pool(d) for kind in ("", "adaptive_") for d in (1, 2, 3)},
}
