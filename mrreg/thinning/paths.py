"""Forwards of a double copy on each path that code takes: where random numbers, data or the mode decide."""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from mrreg.errors import add_note
from mrreg.isolation import deep_copy
from mrreg.thinning.twin import (
    DoublePrecision,
    ExtremeNumbers,
    Inputs,
    floats_in,
    frozen,
    outputs_in,
    set_generators,
    state_kept,
)

Call = tuple[str, tuple[int, ...]]  # a function, and the parameters that it takes by id


class Path(NamedTuple):
    """Conditions under which a forward in training mode runs.

    Args:
        name: Ending of a sentence about it.
        layers: False if all modules but the outermost are in evaluation mode.
        batch_norm: True if BatchNorm is in training mode too.
        largest: True or False if random numbers are as large or as small as possible.
        factor: Of floating-point inputs and of what embeddings give.
        shift: Is added to them.
        other: True if it calls other functions than the plain path.
    """

    name: str
    layers: bool = True
    batch_norm: bool = True
    largest: bool | None = None
    factor: float = 1.0
    shift: float = 0.0
    other: bool = False


class Ran(NamedTuple):
    """What a forward has done.

    Args:
        outputs: Floating-point tensors that it returned.
        calls: Functions of torch, in order.
        buffers: Shapes of the buffers at its end.
        replaced: Names of buffers in whose place it has put other ones.
    """

    outputs: list[Tensor]
    calls: list[Call]
    buffers: dict[str, torch.Size]
    replaced: set[str]


def find_paths(twin: nn.Module, inputs: Inputs) -> list[Path]:
    """Return the plain path, one with frozen layers, and others that call other functions or see other values.

    Code that draws lots compares a random number with a threshold, so the extremes decide each of them both ways.
    Large, small and shifted values show what thresholds do that call the same functions on either side.
    """
    plain = Path("")
    try:
        try:
            ran = run(twin, inputs, plain)
        except ValueError:  # BatchNorm refuses a single value per channel
            plain = plain._replace(batch_norm=False)
            ran = run(twin, inputs, plain)
    except Exception as error:
        add_note(error, "thin: raised by the forward in training mode of a float64 copy of the model.")
        raise
    others = [
        plain._replace(name=" with random numbers near 0", largest=False),
        plain._replace(name=" with random numbers near 1", largest=True),
        plain._replace(name=" with example_inputs times -10", factor=-10.0),
        plain._replace(name=" with example_inputs plus 10", shift=10.0),
        plain._replace(name=" with example_inputs times 0.01", factor=0.01),
    ]
    frozen = Path(" with layers in evaluation mode", layers=False)
    return [plain, frozen, *(path for each in others for path in _if_other(twin, inputs, each, ran))]


def _if_other(twin: nn.Module, inputs: Inputs, path: Path, plain: Ran) -> list[Path]:
    try:
        ran = run(twin, inputs, path)
    except Exception:
        return []  # numbers that the model is not made for
    if not all(bool(tensor.isfinite().all()) for tensor in ran.outputs):
        return []
    if ran.calls != plain.calls:
        return [path._replace(other=True)]
    changed = path.largest is None and any(map(torch.ne, map(torch.norm, ran.outputs), map(torch.norm, plain.outputs)))
    return [path] if changed else []


def run(twin: nn.Module, inputs: Inputs, path: Path) -> Ran:
    """Run a forward without dropout and graph; buffers and attributes stay as they are.

    Nothing requires gradients, but they are on: without them masked forwards are whole.
    """
    if path.factor != 1 or path.shift != 0:
        inputs = deep_copy(inputs)
        for tensor in floats_in(inputs):
            tensor.mul_(path.factor).add_(path.shift)
    set_generators(path.largest)
    numbers = nullcontext() if path.largest is None else ExtremeNumbers(path.largest)
    watch = NoDropout(path.factor, path.shift)
    with frozen(twin), state_kept(twin), DoublePrecision(), watch, numbers:  # type: ignore[no-untyped-call]
        set_mode(twin, path)
        before = dict(twin.named_buffers())
        outputs = outputs_in(twin(*inputs.args, **inputs.kwargs))
        after = dict(twin.named_buffers())
    replaced = {name for name, buffer in before.items() if after.get(name) is not buffer}
    return Ran(outputs, watch.calls, {name: buffer.shape for name, buffer in after.items()}, replaced)


def set_mode(twin: nn.Module, path: Path) -> None:
    """Put modules into training or evaluation mode."""
    twin.train(path.layers)
    for module in twin.modules() if not path.batch_norm else ():
        if isinstance(module, _NormBase):
            module.eval()
    twin.training = True


class NoDropout(TorchFunctionMode):
    """Takes p = 0 in every dropout, and notes what is called; what else is random draws the same at every call.

    Args:
        factor: Of what embeddings give.
        shift: Is added to it.
    """

    def __init__(self, factor: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.factor, self.shift = factor, shift

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self.calls.append((name, tuple(id(each) for each in args if isinstance(each, nn.Parameter))))
        if "dropout" in name:
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention":
            named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
            return func(**{**named, **kwargs, "dropout_p": 0.0})
        output = func(*args, **kwargs)
        return (
            output * self.factor + self.shift if name == "embedding" and (self.factor, self.shift) != (1, 0) else output
        )
