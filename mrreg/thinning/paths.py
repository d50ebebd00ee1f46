"""Forwards of a double copy on each path that code takes: in both modes, and where random numbers or data decide."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from mrreg.errors import add_note
from mrreg.isolation import ExtremeNumbers, deep_copy, set_generators
from mrreg.thinning.double_copy import DoublePrecision, Inputs, floats_in, outputs_in

Call = tuple[str, tuple[int, ...]]  # a function, and the parameters that it takes by id


class Path(NamedTuple):
    """Conditions under which a forward runs.

    Args:
        name: Ending of a sentence about it.
        training: The mode.
        batch_norm: True if BatchNorm is in that mode too.
        largest: True or False if random numbers are as large or as small as possible.
        factor: Of floating-point inputs.
    """

    name: str
    training: bool
    batch_norm: bool = True
    largest: bool | None = None
    factor: float = 1.0


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
    """Return a path in evaluation mode, one in training mode, and others in training mode that call other functions.

    Code that draws lots compares a random number with a threshold, so the extremes decide each of them both ways.
    """
    plain = Path(" in training mode", True)
    try:
        try:
            calls = run(twin, inputs, plain).calls
        except ValueError:  # BatchNorm refuses a single value per channel
            plain = plain._replace(batch_norm=False)
            calls = run(twin, inputs, plain).calls
    except Exception as error:
        add_note(error, "thin: raised by the forward in training mode of a float64 copy of the model.")
        raise
    others = [
        plain._replace(name=" with random numbers near 0", largest=False),
        plain._replace(name=" with random numbers near 1", largest=True),
        plain._replace(name=" with example_inputs times -10", factor=-10.0),
    ]
    return [Path("", False), plain, *(path for path in others if _differs(twin, inputs, path, calls))]


def _differs(twin: nn.Module, inputs: Inputs, path: Path, calls: Sequence[Call]) -> bool:
    try:
        ran = run(twin, inputs, path)
    except Exception:
        return False  # numbers that the model is not made for
    return ran.calls != calls and all(bool(tensor.isfinite().all()) for tensor in ran.outputs)


def run(twin: nn.Module, inputs: Inputs, path: Path) -> Ran:
    """Run a forward without dropout; the buffers stay as they are."""
    set_mode(twin, path)
    if path.factor != 1:
        inputs = deep_copy(inputs)
        for tensor in floats_in(inputs):
            tensor.mul_(path.factor)
    set_generators(path.largest)
    numbers = nullcontext() if path.largest is None else ExtremeNumbers(path.largest)
    watch = NoDropout()
    with torch.no_grad(), buffers_kept(twin), DoublePrecision(), watch, numbers:  # type: ignore[no-untyped-call]
        before = dict(twin.named_buffers())
        outputs = outputs_in(twin(*inputs.args, **inputs.kwargs))
        after = dict(twin.named_buffers())
    replaced = {name for name, buffer in before.items() if after.get(name) is not buffer}
    return Ran(outputs, watch.calls, {name: buffer.shape for name, buffer in after.items()}, replaced)


def set_mode(twin: nn.Module, path: Path) -> None:
    """Put modules into training or evaluation mode."""
    twin.train(path.training)
    for module in twin.modules() if not path.batch_norm else ():
        if isinstance(module, _NormBase):
            module.eval()


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Let modules write, inside a `with` block, to copies of their buffers."""
    tables = [(module, module._buffers) for module in model.modules()]
    copies: dict[int, Tensor] = {id(buffer): buffer.clone() for buffer in model.buffers()}
    try:
        for module, table in tables:
            module._buffers = {name: None if each is None else copies[id(each)] for name, each in table.items()}
        yield
    finally:
        for module, table in tables:
            module._buffers = table


class NoDropout(TorchFunctionMode):
    """Takes p = 0 in every dropout, and notes what is called; what else is random draws the same at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self.calls.append((name, tuple(id(each) for each in args if isinstance(each, nn.Parameter))))
        if "dropout" in name:
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention":
            named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
            return func(**{**named, **kwargs, "dropout_p": 0.0})
        return func(*args, **kwargs)
