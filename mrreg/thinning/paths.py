"""Forwards of a double copy on each path that code takes: where random numbers, data or the mode decide."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.module_tracker import ModuleTracker

from mrreg.errors import NOT_OF_THE_USER
from mrreg.isolation import deep_copy
from mrreg.thinning.substitutes import LEAKY
from mrreg.thinning.twin import (
    WHERE,
    Inputs,
    Operations,
    double_copy,
    floats_in,
    frozen,
    outputs_in,
    probing,
    randomize,
    read_inputs,
    set_generators,
    state_kept,
)

Call = tuple[str, tuple[int, ...]]  # a function, and the parameters that it takes by id


class Path(NamedTuple):
    """Conditions under which a forward in training mode runs."""

    name: str  # the ending of a sentence about it
    layers: bool = True  # False if all modules but the outermost are in evaluation mode
    batch_norm: bool = True  # is in training mode too
    largest: bool | None = None  # True or False if random numbers are as large or as small as possible
    factor: float = 1.0  # of floating-point inputs and of what embeddings give
    shift: float = 0.0  # is added to them
    other: bool = False  # True if it calls other functions than the plain path


class Ran(NamedTuple):
    """What a forward has done."""

    outputs: list[Tensor]
    calls: list[Call]
    buffers: dict[str, torch.Size]  # at its end
    replaced: set[str]  # buffers in whose place it has put other ones
    dropped: Mapping[tuple[str, str], float]  # p of what drops at random, by its module and its function
    singles: Mapping[str, None]  # functions along a dimension of one element


@contextmanager
def copied(model: nn.Module, example_inputs: Any, where: str = WHERE) -> Iterator[tuple[nn.Module, list[Path], Ran]]:
    """Copy a model for a `with` block, and find the paths of its forward, and what the plain one does.

    The copy is in float64, else in float32: some operations have no float64.
    """
    read_inputs(example_inputs)  # complains before the copy is made
    for precision in (torch.float64, torch.float32):
        twin = double_copy(model, precision)
        with probing(twin, precision):
            randomize(twin)
            try:
                paths, plain = find_paths(twin, read_inputs(example_inputs))
            except Exception as error:
                failed = error
                continue
            yield twin, paths, plain
            return
    if str(failed).startswith(f"{WHERE}: "):
        raise failed
    stars = "**" if isinstance(example_inputs, Mapping) else "" if isinstance(example_inputs, Tensor) else "*"
    shapes = str(tree_map_only(Tensor, lambda tensor: f"Tensor{tuple(tensor.shape)}", example_inputs))
    shapes = shapes.replace("'Tensor", "Tensor").replace(")'", ")")
    told = f"example_inputs={shapes}, called as model({stars}example_inputs): {failure(failed)}"
    remedy = "Give what one training forward takes, with a batch dimension and without labels that the loss takes"
    remedy += ": a tuple for several arguments, a mapping for keywords"
    raise ValueError(f"{where}: the forward failed on {told}. {remedy}.") from failed


def failure(error: Exception) -> str:
    """Name the line of the user's code that raised an error, and the error."""
    told = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_OF_THE_USER)]
    if not frames:
        return told
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno} fails, `{frames[-1].line}` ({told})"


def find_paths(twin: nn.Module, inputs: Inputs) -> tuple[list[Path], Ran]:
    """Return the plain path, one with frozen layers, others that call other functions or see other values, and the run.

    Code that draws lots compares a random number with a threshold, so the extremes decide each of them both ways.
    Large, small and shifted values show what thresholds do that call the same functions on either side.
    """
    plain = Path("")
    try:
        run(twin, inputs, plain)  # the first call may set what others find, as in a config
    except ValueError:  # BatchNorm refuses a single value per channel
        plain = plain._replace(batch_norm=False)
    ran = run(twin, inputs, plain)
    others = [
        Path(" with layers in evaluation mode", layers=False),
        plain._replace(name=" with random numbers near 0", largest=False),
        plain._replace(name=" with random numbers near 1", largest=True),
        plain._replace(name=" with example_inputs times -10, plus 10", factor=-10.0, shift=10.0),
        plain._replace(name=" with example_inputs times 0.01", factor=0.01),
    ]
    return [plain, *(path for each in others for path in _if_other(twin, inputs, each, ran))], ran


def _if_other(twin: nn.Module, inputs: Inputs, path: Path, plain: Ran) -> list[Path]:
    try:
        ran = run(twin, inputs, path)
    except Exception:
        return []  # numbers that the model is not made for
    if not all(bool(tensor.isfinite().all()) for tensor in ran.outputs):
        return []
    other = ran.calls != plain.calls
    changed = any(map(torch.ne, map(torch.norm, ran.outputs), map(torch.norm, plain.outputs)))
    return [path._replace(other=other and path.layers)] if other or (changed and path.largest is None) else []


def run(twin: nn.Module, inputs: Inputs, path: Path) -> Ran:
    """Run a forward without dropout; buffers and attributes stay. Without gradients a masked forward would be whole."""
    with frozen(twin), state_kept(twin):
        before = dict(twin.named_buffers())
        outputs, watch, operations = forward(twin, inputs, path)
        after = dict(twin.named_buffers())
    replaced = {name for name, buffer in before.items() if after.get(name) is not buffer}
    shapes = {name: buffer.shape for name, buffer in after.items()}
    return Ran(outputs, watch.calls, shapes, replaced, watch.dropped, operations.singles)


def difference(found: Ran, expected: Ran) -> str:
    """Describe how outputs, or shapes of buffers, differ by more than rounding; nothing if they do not."""
    if [one.shape for one in found.outputs] != [two.shape for two in expected.outputs]:
        return "the outputs have other shapes"
    for one, two in zip(found.outputs, expected.outputs, strict=True):
        scale = max(1.0, float(two.abs().max())) if two.numel() else 1.0
        worst = float((one - two).abs().max()) if two.numel() else 0.0
        if not worst <= (1e-9 if torch.get_default_dtype() == torch.float64 else 1e-4) * scale:
            return f"the output differs by {worst / scale:.1g}"
    changed = [name for name, shape in found.buffers.items() if shape != expected.buffers.get(name)]
    return f"the buffer {changed[0]} gets another shape" if changed else ""


def forward(twin: nn.Module, inputs: Inputs, path: Path) -> tuple[list[Tensor], "NoDropout", Operations]:
    """Run a forward, and return the tensors that can be compared, and what was seen."""
    if path.factor != 1 or path.shift != 0:
        inputs = deep_copy(inputs)
        for tensor in floats_in(inputs):
            tensor.mul_(path.factor).add_(path.shift)
    set_generators(path.largest)
    twin.train(path.layers)
    for module in twin.modules() if not path.batch_norm else ():
        if isinstance(module, _NormBase):
            module.eval()
    twin.training = True
    with NoDropout(path.factor, path.shift) as watch, watch.tracker, Operations(path.largest) as operations:
        return outputs_in(twin(*inputs.args, **inputs.kwargs)), watch, operations


class NoDropout(TorchFunctionMode):
    """Takes p = 0 in every dropout, notes what is called and what would drop, and scales what embeddings give."""

    def __init__(self, factor: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.calls, self.dropped, self.tracker = list[Call](), dict[tuple[str, str], float](), ModuleTracker()
        self.factor, self.shift = factor, shift

    def _drop(self, name: str, p: float) -> None:
        if p:
            innermost = max(self.tracker.parents, key=lambda path: path.count("."))
            self.dropped.setdefault((innermost.partition(".")[2], name), p)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self.calls.append((name, tuple(id(each) for each in args if isinstance(each, nn.Parameter))))
        if "dropout" in name:
            given = {**dict(zip(("input", "p", "training"), args, strict=False)), **kwargs}
            self._drop(name, given.get("p", 0.5) if given.get("training", given.get("train", True)) else 0.0)
            return given["input"]
        if name == "scaled_dot_product_attention":
            named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
            self._drop(name, {**named, **kwargs}.get("dropout_p", 0.0))
            return func(**{**named, **kwargs, "dropout_p": 0.0})
        alive = name in LEAKY and args and args[0].is_floating_point()  # what a unit does that is dead does not show
        output = LEAKY[name](func, *args, **kwargs) if alive else func(*args, **kwargs)
        changed = name == "embedding" and (self.factor, self.shift) != (1, 0)
        return output * self.factor + self.shift if changed else output
