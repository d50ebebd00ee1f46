"""A copy of a model with random weights, on which thinning is tried: the model itself is only read."""

import gc
import random
import re
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CellType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from mrreg.errors import check_type, invalid_argument, invalid_state
from mrreg.isolation import deep_copy, isolated
from mrreg.masks.attention import attend
from mrreg.module_utils import tensors_in

WHERE = "thin"
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}
RANDOM_OPERATION = re.compile(r".*(bernoulli|uniform|rand(?!n)).*")  # normal noise drops nothing
BELOW_ONE = 1 - 2.0**-8  # the largest number below 1 of the least precise type
MT_ONES, MT_EXTREME, MT_WORDS = 316513203, 500, 624  # a Mersenne Twister turns the word MT_ONES into 32 ones


class Inputs(NamedTuple):
    """Arguments of a forward."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def read_inputs(given: Any) -> Inputs:
    """Return the arguments that example inputs stand for, copied, with floating-point tensors in default precision."""
    if given is None:
        remedy = "Give one batch, or a plan from an earlier report."
        raise invalid_argument(ValueError, WHERE, "example_inputs", "what one training forward takes", given, remedy)
    if isinstance(given, Mapping):
        return Inputs((), {name: _precise(value) for name, value in given.items()})
    if isinstance(given, tuple | list):
        return Inputs(tuple(map(_precise, given)), {})
    rule = "a tensor, a tuple of arguments or a mapping of keyword arguments"
    return Inputs((_precise(check_type(WHERE, "example_inputs", given, Tensor, rule)),), {})


def _precise(value: Any) -> Any:
    """Copy a value; tensors in it, also those in lists and mappings, in default precision."""
    precision = torch.get_default_dtype()
    copy = deep_copy(value)
    return tree_map_only(Tensor, lambda each: each.detach().to(_precision(each.dtype, precision)), copy)


def _precision(dtype: torch.dtype, precision: torch.dtype) -> torch.dtype:
    return precision if dtype.is_floating_point else COMPLEX[precision] if dtype.is_complex else dtype


def floats_in(value: object) -> list[Tensor]:
    """Return the floating-point tensors in an output or input; sparse ones, caches and other objects are passed by."""
    return [each for each in tensors_in(value) if each.is_floating_point() and each.layout is torch.strided]


def outputs_in(output: object) -> list[Tensor]:
    """Return the floating-point and complex tensors in an output, also in attributes of objects, which has some."""
    if found := [each for each in tensors_in(output, objects=3) if each.is_floating_point() or each.is_complex()]:
        return found
    problem = f"the output holds no tensors that can be compared: {type(output).__name__}"
    raise invalid_state(WHERE, problem, "Let the forward return tensors, or tuples, mappings or objects of them.")


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and dense floating-point buffers under their first names."""
    buffers = dict(model.named_buffers()).items()
    dense = {name: b for name, b in buffers if b.is_floating_point() and b.layout is torch.strided}
    return {**dict(model.named_parameters()), **dense}


class _Attention(nn.MultiheadAttention):
    """torch's own forward cannot leave out heads."""

    forward = attend


@torch.inference_mode(False)
def double_copy(model: nn.Module, precision: torch.dtype = torch.float64) -> nn.Module:
    """Return a copy in evaluation mode, with copies of forward hooks, for `randomize` to fill."""
    memo: dict[int, Any] = {id(each): each for each in sys.modules.values()}  # that closures may hold
    memo |= {id(each): _copied(each, precision) for each in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        memo |= {id(getattr(module, name)): OrderedDict() for name in HOOKS}
    try:
        twin: nn.Module = deep_copy(model, memo)
        for module in model.modules():
            for name in HOOKS[:2]:
                for key, hook in getattr(module, name).items():
                    getattr(memo[id(module)], name)[key] = _copied_function(hook, memo)
            for name, value in vars(module).items():
                if any(id(each) in memo for each in gc.get_referents(*(getattr(value, "__closure__", None) or ()))):
                    vars(memo[id(module)])[name] = _copied_function(value, memo)
    except Exception as error:
        problem = f"the model cannot be copied with its hooks and functions ({type(error).__name__}: {error})"
        remedy = "Call it before the model is wrapped or compiled, or gets hooks that hold such objects."
        raise invalid_state(WHERE, problem, remedy) from error
    for module in twin.eval().modules():
        if type(module) is nn.MultiheadAttention:
            module.__class__ = _Attention
    return twin


def _copied_function(function: Any, memo: dict[int, Any]) -> Any:
    """Copy a hook or function along with what its object, arguments and closure refer to; globals stay as they are."""
    if not isinstance(function, FunctionType) or not function.__closure__:
        return deep_copy(function, memo)
    cells = tuple(CellType(*deep_copy(gc.get_referents(cell), memo)) for cell in function.__closure__)  # some are empty
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _copied(tensor: Tensor, precision: torch.dtype) -> Tensor:
    dtype = _precision(tensor.dtype, precision)
    if not isinstance(tensor, nn.Parameter):
        return tensor.detach().to(dtype, copy=True)
    made = torch.empty(tensor.shape, dtype=dtype, device=tensor.device)
    continuous = made.is_floating_point() or made.is_complex()
    return nn.Parameter(made if continuous else made.copy_(tensor), continuous)


@torch.no_grad()
def randomize(twin: nn.Module) -> None:
    """Fill parameters and BatchNorm statistics with the same random numbers at every call: a fresh model has zeros."""
    torch.manual_seed(0)
    for parameter in twin.parameters():
        if parameter.dim() > 1 or parameter.is_complex():
            parameter.normal_(0, max(parameter.numel() // max((*parameter.shape, 1)[0], 1), 1) ** -0.5)
        elif parameter.is_floating_point():  # scales of normalizations must not come near zero
            sign = torch.randint_like(parameter, 2) * 2 - 1
            parameter.uniform_(0.5, 1.5).mul_(sign)
    for module in twin.modules():
        if isinstance(module, _NormBase) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets no operation go below default precision, makes random numbers extreme if asked, and notes `singles`.

    Those are functions along a dimension of one element, which hide there what they mix elsewhere.
    """

    def __init__(self, largest: bool | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest, self.singles = largest, dict[str, None]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would double the time of a trial, and nothing compiles there

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(dtype := kwargs.get("dtype"), torch.dtype):
            kwargs = {**kwargs, "dtype": _precision(dtype, torch.get_default_dtype())}
        output = func(*args, **kwargs)
        value, name = args[0] if args else None, func._schema.name.removeprefix("aten::")
        if not isinstance(output, Tensor):
            return output
        noise = output.is_floating_point() or output.dtype is torch.bool
        if self.largest is not None and noise and RANDOM_OPERATION.fullmatch(name):
            output.fill_((1.0 if "bernoulli" in name else BELOW_ONE) * self.largest)
        if isinstance(value, Tensor) and 1 in value.shape and 1 < value.numel() == output.numel():
            dims = dict(zip((each.name for each in func._schema.arguments), args, strict=False)).get("dim")
            dims = [dims] if isinstance(dims, int) else dims or []
            single = dims and all(-value.dim() <= d < value.dim() and value.shape[d] == 1 for d in dims)
            if single and value.is_floating_point() and not torch.equal(value.flatten(), output.flatten()):
                self.singles[name.strip("_")] = None
        return output


@contextmanager
def _plain_checkpoints() -> Iterator[None]:
    """Let activation checkpoints be plain calls: no backward pass may compute the graph again that is read."""

    def nothing(*_: Any, **__: Any) -> Iterator[None]:
        yield

    names = [name for name in vars(checkpoint) if name.startswith("_checkpoint_without_reentrant_generator")]
    before = {name: vars(checkpoint)[name] for name in [*names, "CheckpointFunction"]}
    vars(checkpoint).update(dict.fromkeys(names, nothing))
    vars(checkpoint)["CheckpointFunction"] = SimpleNamespace(apply=lambda function, _, *args: function(*args))
    try:
        yield
    finally:
        vars(checkpoint).update(before)


@contextmanager
def probing(twin: nn.Module, precision: torch.dtype = torch.float64) -> Iterator[None]:
    """Compute in this precision, attention's fast path and checkpoints off, and leave generators as they were."""
    dtype, fast = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    try:
        torch.set_default_dtype(precision)
        torch.backends.mha.set_fastpath_enabled(False)
        with isolated(twin), _plain_checkpoints(), catch_warnings():
            simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.backends.mha.set_fastpath_enabled(fast)


def set_generators(largest: bool | None) -> None:
    """Let all generators draw the same numbers as ever; the next ones of Python and NumPy, if asked, near 1, or 0.

    Later ones are ordinary, or sampling by rejection would never end.
    """
    numpy = sys.modules.get("numpy")
    for seed in (torch.manual_seed, random.seed, *([numpy.random.seed] if numpy else [])):
        seed(0)
    if largest is not None:
        words = (*(MT_ONES if largest else 0,) * MT_EXTREME, *range(MT_WORDS - MT_EXTREME))
        random.setstate((3, (*words, 0), None))
        if numpy:
            numpy.random.set_state(("MT19937", words, 0))


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Let nothing in a model require gradients inside a `with` block."""
    trained = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.requires_grad]
    for tensor in trained:
        tensor.requires_grad_(False)
    try:
        yield
    finally:
        for tensor in trained:
            tensor.requires_grad_(True)


@contextmanager
def state_kept(model: nn.Module) -> Iterator[None]:
    """Let modules write, inside a `with` block, to copies of their buffers, and set attributes."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    copies: dict[int, Tensor] = {id(buffer): buffer.clone() for buffer in model.buffers()}
    try:
        for module, state in before:
            table = state["_buffers"]
            module._buffers = {name: None if each is None else copies[id(each)] for name, each in table.items()}
        yield
    finally:
        for module, state in before:
            vars(module).clear()
            vars(module).update(state)
