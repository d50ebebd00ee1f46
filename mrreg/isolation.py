"""Run a forward of somebody's model so that nothing of it stays behind."""

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


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
def isolated(model: nn.Module) -> Iterator[None]:
    """Compute with gradients, and leave the global generators of torch, Python and NumPy as they were."""
    devices = {parameter.get_device() for parameter in model.parameters() if parameter.is_cuda}
    python, numpy = random.getstate(), sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        random.setstate(python)
        if numpy:
            numpy.random.set_state(state)


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Run passes of a model of which nothing stays: flags, gradients, buffers, modes and random state are put back.

    Hooks that its parameters have for complete gradients do not run: an optimizer may step in them.
    """
    modules = [(module, module.training, dict(module._buffers)) for module in model.modules()]
    tensors = [(p, p.requires_grad, p.grad, p._post_accumulate_grad_hooks) for p in model.parameters()]
    hooks = [(each, dict(each)) for *_, each in tensors if each]
    values = [(each, each.clone()) for each in model.buffers()]
    with isolated(model):
        try:
            for each, _ in hooks:
                each.clear()
            yield
        finally:
            for each, entries in hooks:
                each.update(entries)
            for module, mode, buffers in modules:
                module.training = mode
                module._buffers.clear()
                module._buffers.update(buffers)
            for p, flag, grad, _ in tensors:
                p.requires_grad_(flag)
                p.grad = grad
            with torch.no_grad():
                for buffer, value in values:
                    buffer.copy_(value)
