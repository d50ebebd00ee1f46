"""Run a forward of somebody's model so that nothing of it stays behind."""

import copy
import random
import re
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mrreg.errors import invalid_state

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
         "_forward_hooks_always_called")  # fmt: skip
RANDOM_OPERATION = re.compile(r".*(dropout|bernoulli|uniform|attention|rand(?!n)).*")  # normal noise drops nothing
BELOW_ONE = 1 - 2.0**-8  # the largest number below 1 of the least precise type
MT_ONES, MT_EXTREME, MT_WORDS = 316513203, 500, 624  # a Mersenne Twister turns the word MT_ONES into 32 ones


class _CopiedTensors(TorchFunctionMode):
    """While it is on, deepcopy of a tensor is a clone without history (deepcopy refuses cached activations)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


def deep_copy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a deepcopy that also takes tensors with an autograd history."""
    with _CopiedTensors():
        return copy.deepcopy(value, memo)


@contextmanager
def copied_state(where: str, model: nn.Module) -> Iterator[None]:
    """Let the modules of a model run on a deepcopy of their state, in training mode and without hooks.

    The modules stay the same objects, so that closures and bound methods reach them too; parameters are shared.
    """
    scripted = {m for root in model.modules() if isinstance(root, torch.jit.ScriptModule) for m in root.modules()}
    modules = [
        module for module in model.modules() if module not in scripted
    ]  # scripted state can only be copied whole
    shared: dict[int, Any] = {id(each): each for each in (*modules, *model.parameters())}
    own = [module.__dict__ for module in modules]
    try:
        states = deep_copy([_state(module) for module in modules], shared)
    except Exception as error:
        raise invalid_state(
            where,
            f"the model cannot be copied to follow one forward ({type(error).__name__}: {error})",
            "Call it before the model is wrapped or compiled, or leave out example_inputs.",
        ) from error
    try:
        for module, state in zip(modules, states, strict=True):
            object.__setattr__(module, "__dict__", state)
        model.train()
        for module in modules:
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.eval()  # in training it refuses a single example
        yield
    finally:
        for module, state in zip(modules, own, strict=True):
            object.__setattr__(module, "__dict__", state)


def _state(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that a copy of a module would get, without hooks: they may record what they see."""
    own = module.__dict__
    getstate = getattr(type(module), "__getstate__", None)  # Python 3.10 has none on `object`
    try:
        reduced = getstate(module) if getstate else own
    except RuntimeError:  # parametrized modules forbid it
        reduced = own
    return own | (reduced if isinstance(reduced, dict) else {}) | {name: OrderedDict() for name in HOOKS}


@contextmanager
def random_state_kept(model: nn.Module) -> Iterator[None]:
    """Leave the global generators of torch, Python and NumPy as they were."""
    devices = {parameter.get_device() for parameter in model.parameters() if parameter.is_cuda}
    python, numpy = random.getstate(), sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        if numpy:
            numpy.random.set_state(state)


def set_extreme_generators(largest: bool) -> None:
    """Let the next numbers that Python and NumPy draw lie just below 1, or be 0."""
    extreme = (MT_ONES if largest else 0,) * MT_EXTREME
    words = (*extreme, *range(MT_WORDS - MT_EXTREME))  # then ordinary ones, or sampling by rejection would never end
    random.setstate((3, (*words, 0), None))
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy.random.set_state(("MT19937", words, 0))


def set_generators(largest: bool | None) -> None:
    """Let all generators draw the same numbers as ever after this call; those of Python and NumPy extreme ones."""
    torch.manual_seed(0)
    numpy = sys.modules.get("numpy")
    if largest is not None:
        set_extreme_generators(largest)
    else:
        random.seed(0)
        if numpy:
            numpy.random.seed(0)


def generators_moved() -> list[str]:
    """Return those of these generators that have been used since."""
    numpy = sys.modules.get("numpy")
    moved = ["random"] if random.getstate()[1][-1] else []
    return moved + (["numpy.random"] if numpy and numpy.random.get_state()[2] else [])


class ExtremeNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes random numbers of torch as large or as small as possible."""

    def __init__(self, largest: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = largest

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if RANDOM_OPERATION.fullmatch(name):
            p, random = _drop_rate(name, _arguments(func, args, kwargs or {}))
            noise = isinstance(output, Tensor) and (output.is_floating_point() or output.dtype is torch.bool)
            if random:
                self.note(name, p, noise and output.numel() == 1)
            if random and noise and "dropout" not in name:
                output.fill_((1.0 if "bernoulli" in name else BELOW_ONE) * self.largest)
        return output

    def note(self, operation: str, p: float | None, scalar: bool) -> None:
        """Be told of an operation that draws: with a probability of being dropped, or one number for all."""


def _arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation by name, with those that are left out at their defaults."""
    names = [argument.name for argument in func._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
    return defaults | dict(zip(names, args, strict=False)) | kwargs


def _drop_rate(operation: str, given: dict[str, Any]) -> tuple[float | None, bool]:
    """Return the probability of being dropped, if an operation says it, and True if it draws anything."""
    p = next((float(given[name]) for name in ("p", "dropout_p") if isinstance(given.get(name), int | float)), None)
    if "attention" in operation:
        return p, bool(p)
    drawn = p not in (0, 1) and bool(given.get("train", True))
    return (round(1 - p, 6) if p is not None and "bernoulli" in operation else p), drawn  # torch says what is kept
