"""Recognize, by a trial on a small tensor, an optimizer that cannot hold single entries; and look inside wrappers."""

import copy
import inspect
import warnings
from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.distributed.checks import check_engine
from mrreg.errors import invalid_argument

WHERE = "attach"
SIDE = 128  # of the trial's matrix: some optimizers treat smaller ones, or fewer than 4096 entries, element by element
STEPS = 3
LR = 0.01
DEPENDENT = "In a trial on a small tensor, entries moved differently when the gradients of others changed."
DEPTH = 4  # of the attributes in which an optimizer keeps others


def inner_optimizer(optimizer: Any) -> Optimizer:
    """Return the torch optimizer whose step moves the parameters: that inside a wrapper, or the optimizer itself.

    A wrapper (Lookahead, sharpness-aware ones, Accelerate's) has one optimizer for an attribute, over the same
    parameters. The steps of that one are counted, whatever the wrapper's own methods are called.
    """
    seen: list[Any] = []
    while not any(optimizer is each for each in seen):
        seen.append(optimizer)
        check_engine(WHERE, "optimizer", optimizer)
        values = [*getattr(optimizer, "__dict__", {}).values(), getattr(optimizer, "optimizer", None)]
        inside = {id(value): value for value in values}
        found = [each for each in inside.values() if isinstance(each, Optimizer) and each is not optimizer]
        if len(found) == 1 and _covers(found[0], optimizer):
            optimizer = found[0]
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_post_hooks"):
        rule = "a torch.optim.Optimizer with step hooks, or a wrapper of one over the same parameters"
        raise invalid_argument(TypeError, WHERE, "optimizer", rule, type(optimizer).__name__)
    return optimizer


def _covers(inner: Optimizer, outer: Any) -> bool:
    """Return True if an inner optimizer has all parameters of the outer one."""
    groups = getattr(outer, "param_groups", None)
    return groups is None or set(_parameters(outer)) <= set(_parameters(inner))


def _parameters(optimizer: Optimizer) -> dict[int, Tensor]:
    return {id(p): p for group in optimizer.param_groups for p in group["params"]}


def refuse_unfit(optimizer: Optimizer, masked: Container[int]) -> None:
    """Refuse an optimizer in which the update of a masked parameter's entry depends on the gradients of others.

    Args:
        optimizer: The optimizer to attach; of one that is made of others, those are tried.
        masked: The ids of its masked parameters.
    """
    for each in list(_made_of(optimizer, DEPTH, {id(optimizer)})) or [optimizer]:
        for group in each.param_groups:
            affected = [p for p in group["params"] if id(p) in masked]
            if affected and (reason := _fault(each, group, max(affected, key=Tensor.dim))):
                rule = "an optimizer whose update is element-wise"
                raise invalid_argument(TypeError, WHERE, "optimizer", rule, type(each).__name__, reason)


def _made_of(value: Any, depth: int, seen: set[int]) -> Iterator[Optimizer]:
    """Yield the optimizers that an object keeps in its attributes, in lists, or in objects of its own."""
    if isinstance(value, Mapping):
        inside: list[Any] = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    elif isinstance(value, Tensor | nn.Module | type):
        return
    else:
        attributes = getattr(value, "__dict__", {})
        inside = [each for name, each in attributes.items() if name not in ("param_groups", "state", "defaults")]
    for each in inside:
        if id(each) not in seen:
            seen.add(id(each))
            if isinstance(each, Optimizer):
                yield each
            elif depth:
                yield from _made_of(each, depth - 1, seen)


def _fault(optimizer: Optimizer, group: dict[str, Any], like: Tensor) -> str:
    """Return why single entries of a group's parameters cannot be held, or an empty string."""
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if required:
        return f"Its step needs {required[0]!r}: it may step several times per call."
    shape = (SIDE, SIDE) if like.dim() > 1 else (SIDE * SIDE,)
    random = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(1 + STEPS, *shape, generator=random).to(like.device, like.dtype)
    other = torch.rand(shape, generator=random).to(like.device) < 0.5
    results = []
    for factor in (1.0, -3.0):
        changed = [torch.where(other, gradient * factor, gradient) for gradient in gradients]
        try:
            results.append(_train(optimizer, group, start, changed))
        except Exception as error:
            return f"A trial step on a small tensor failed ({type(error).__name__}: {error})."
    if results[0] is None or results[1] is None:
        return ""
    return "" if torch.equal(results[0][~other], results[1][~other]) else DEPENDENT


def _train(optimizer: Optimizer, group: dict[str, Any], start: Tensor, gradients: list[Tensor]) -> Tensor | None:
    """Return a parameter that an optimizer with a group's options has trained; None if another one cannot be built."""
    parameter = nn.Parameter(start.clone())
    devices = [start.device] if start.is_cuda else []
    with warnings.catch_warnings(), torch.random.fork_rng(devices), torch.enable_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        twin = _twin(optimizer, group, parameter)
        if twin is None:
            return None
        step: Any = type(twin).step
        if getattr(step, "hooked", False):  # hooks of all optimizers must not see a trial
            step = step.__wrapped__
        for gradient in gradients:
            parameter.grad = gradient.clone()
            step(twin)
    return parameter.detach()


def _twin(optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter) -> Any:
    """Build another optimizer of the same class and options."""
    kind: Any = type(optimizer)
    options = {name: copy.deepcopy(value) for name, value in group.items() if name not in ("params", "param_names")}
    if "lr" in options:  # it may be 0 in a warm-up
        options["lr"] = torch.full_like(options["lr"], LR) if isinstance(options["lr"], Tensor) else LR
    known = inspect.signature(kind.__init__).parameters
    arguments = {name: value for name, value in optimizer.defaults.items() if name in known}
    try:
        twin = kind([{**options, "params": [parameter]}], **arguments)
    except Exception:  # its constructor wants something that its groups do not say
        return None
    if callable(getattr(twin, "train", None)):
        twin.train()
    return twin
