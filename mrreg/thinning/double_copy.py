"""A float64 copy of a model with random weights, on which thinning is tried: the model itself is only read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from mrreg.errors import invalid_argument, invalid_state
from mrreg.isolation import HOOKS, deep_copy, random_state_kept
from mrreg.masks.attention import attend
from mrreg.module_utils import tensors_in

WHERE = "thin"
LOW_PRECISION = (torch.float32, torch.float16, torch.bfloat16)


class Inputs(NamedTuple):
    """Arguments of a forward."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def read_inputs(given: Any) -> Inputs:
    """Return the arguments that example inputs stand for, copied, with floating-point tensors in float64."""
    if given is None:
        remedy = "Give one batch, or a plan from an earlier report."
        raise invalid_argument(ValueError, WHERE, "example_inputs", "what one training forward takes", given, remedy)
    if isinstance(given, Mapping):
        return Inputs((), {name: _double(value) for name, value in given.items()})
    if isinstance(given, tuple | list):
        return Inputs(tuple(map(_double, given)), {})
    if isinstance(given, Tensor):
        return Inputs((_double(given),), {})
    rule = "a tensor, a tuple of arguments or a mapping of keyword arguments"
    raise invalid_argument(TypeError, WHERE, "example_inputs", rule, type(given).__name__)


def _double(value: Any) -> Any:
    """Copy a value; tensors in it, also those in lists and mappings, in float64."""
    if isinstance(value, Tensor):
        value = value.detach().clone()
        return value.double() if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(map(_double, value))
    if type(value) is dict:
        return {key: _double(each) for key, each in value.items()}
    return deep_copy(value)


def floats_in(value: object) -> list[Tensor]:
    """Return the floating-point tensors in an output or input; caches and other objects are passed by."""
    return [tensor for tensor in tensors_in(value) if tensor.is_floating_point()]


def outputs_in(output: object) -> list[Tensor]:
    """Return the floating-point tensors in an output, which has some."""
    found = floats_in(output)
    if not found:
        problem = f"the output holds no tensors that can be compared: {type(output).__name__}"
        raise invalid_state(
            WHERE, problem, "Let the forward return tensors, or tuples, mappings or dataclasses of them."
        )
    return found


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and floating-point buffers under their first names."""
    buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    return {**dict(model.named_parameters()), **buffers}


def double_copy(model: nn.Module) -> nn.Module:
    """Return a float64 copy in evaluation mode, without anybody's hooks, for `randomize` to fill."""
    memo: dict[int, Any] = {id(p): nn.Parameter(_like(p)) for p in model.parameters()}
    memo.update({id(b): _like(b).copy_(b) for b in model.buffers() if b.is_floating_point()})
    try:
        twin: nn.Module = deep_copy(model, memo)
    except Exception as error:
        problem = f"the model cannot be copied ({type(error).__name__}: {error})"
        raise invalid_state(WHERE, problem, "Call it before the model is wrapped or compiled.") from error
    twin.eval()
    for module in twin.modules():
        for name in (*HOOKS, "_backward_hooks", "_backward_pre_hooks"):
            _keep_stock(getattr(module, name))
        if type(module) is nn.MultiheadAttention:  # torch's own forward cannot leave out heads
            module.forward = partial(attend, module)  # type: ignore[method-assign]
    return twin


def _keep_stock(hooks: dict[int, Any]) -> None:
    """Drop hooks, but those with which torch.nn.utils computes a weight."""
    for key, hook in list(hooks.items()):
        if not type(hook).__module__.startswith("torch.nn.utils."):
            del hooks[key]


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=torch.float64, device=tensor.device)


@torch.no_grad()
def randomize(twin: nn.Module) -> None:
    """Fill parameters and BatchNorm statistics with the same random numbers at every call.

    They make it certain that units which influence something are seen to do so: a fresh model has zeros in its biases,
    its running means and often in the last normalization of a residual branch.
    """
    torch.manual_seed(0)
    for parameter in twin.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, max(parameter.numel() // max(parameter.shape[0], 1), 1) ** -0.5)
        else:  # scales of normalizations must not come near zero
            sign = torch.randint_like(parameter, 2) * 2 - 1
            parameter.uniform_(0.5, 1.5).mul_(sign)
    for module in twin.modules():
        if isinstance(module, _NormBase) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)


class DoublePrecision(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets no operation go below float64: norms and softmax that compute in float32 would hide small differences."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("dtype") in LOW_PRECISION:
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


@contextmanager
def probing(twin: nn.Module) -> Iterator[None]:
    """Compute in float64 with attention's fast path off, and leave torch's, Python's and NumPy's state as it was."""
    dtype, fast = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    try:
        torch.set_default_dtype(torch.float64)
        torch.backends.mha.set_fastpath_enabled(False)
        with random_state_kept(twin), torch.inference_mode(False), torch.enable_grad(), catch_warnings():
            simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.backends.mha.set_fastpath_enabled(fast)
