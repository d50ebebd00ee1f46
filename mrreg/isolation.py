"""Run a forward of somebody's model so that nothing of it stays behind."""

import copy
import random
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mrreg.errors import invalid_state

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
         "_forward_hooks_always_called")  # fmt: skip
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


def generators_moved() -> list[str]:
    """Return those of these generators that have been used since."""
    numpy = sys.modules.get("numpy")
    moved = ["random"] if random.getstate()[1][-1] else []
    return moved + (["numpy.random"] if numpy and numpy.random.get_state()[2] else [])
