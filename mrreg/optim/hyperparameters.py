"""Checks of the options of `MultirateSGD` and `MultirateAdamW`, and their parameter groups."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mrreg.errors import NoEffectWarning, check_int, check_number, invalid_argument
from mrreg.optim.param_groups import Choice, split
from mrreg.optim.plain_state import Layout
from mrreg.optim.validation import SLOW_LR

Group = dict[str, Any]


Params = ParamsT | nn.Module


def make_groups(
    where: str, params: Params, k: int, fast: Choice | None, slow_lr: str | float
) -> tuple[list[Group], Layout]:
    """Return groups with a period each, 1 for those of `fast` and k for those marked slow, and how they were given."""
    k = check_int(where, "k", k)
    slow_lr = _slow_rate(where, slow_lr)
    groups = _read_groups(where, params)
    layout: Layout = []
    if fast is not None:
        if any(group.get("period") is not None for group in groups):
            rule = "left out where groups have periods of their own"
            raise invalid_argument(
                ValueError, where, "fast", rule, "both", "Let `split` mark the groups, or give `fast`."
            )
        layout = _layout(groups)
        groups = split(params if isinstance(params, nn.Module) else groups, fast=fast)
    elif k > 1 and not any("period" in group for group in groups):
        problem = f"k={k} has no effect, since all parameters are fast"
        remedy = "Name the fast ones, as in fast='fc', or give groups from split(); k=1 is ordinary training."
        warnings.warn(f"{where}: {problem}. {remedy}", NoEffectWarning, stacklevel=3)
    for group in groups:
        if group.get("period", 1) is None:
            group["period"] = k
        if check_int(where, "period", group.setdefault("period", 1)) > 1:
            _set_lr(group, slow_lr)
    return groups, layout


def _read_groups(where: str, params: Params) -> list[Group]:
    """Return parameter groups, one for a module or a list of parameters."""
    if isinstance(params, nn.Module):
        items: list[Any] = list(params.named_parameters())
    elif isinstance(params, Tensor | Mapping | str) or not isinstance(params, Iterable):
        rule = "a module, parameters, named parameters or parameter groups"
        raise invalid_argument(TypeError, where, "params", rule, type(params).__name__)
    else:
        items = list(params)
    if not items:
        raise invalid_argument(ValueError, where, "params", "at least one parameter", [], "An iterator ends after use.")
    if isinstance(items[0], Mapping):
        return [_listed(checked(where, item)) for item in items]
    return [{"params": items}]


def _listed(group: Group) -> Group:
    """Make a list of a group's parameters, which may come as one tensor or as an iterator that ends after use."""
    params = group.get("params")
    return (
        {**group, "params": list(params)} if isinstance(params, Iterable) and not isinstance(params, Tensor) else group
    )


def _layout(groups: list[Group]) -> Layout:
    """Return the parameters of each group, names left out."""
    lists = [[group["params"]] if isinstance(group["params"], Tensor) else group["params"] for group in groups]
    return [[item[1] if isinstance(item, tuple) else item for item in params] for params in lists]


def model_of(where: str, params: Params, model: nn.Module | None) -> nn.Module | None:
    """Return the model whose forwards are watched: the one given, or `params` if that is one."""
    if not isinstance(params, nn.Module):
        return model
    if model is not None and model is not params:
        raise invalid_argument(ValueError, where, "model", "left out where params is a module", type(model).__name__)
    return params


def _slow_rate(where: str, slow_lr: object) -> Any:
    """Return one of the words, or a number."""
    if not isinstance(slow_lr, str):
        return _number(where, "slow_lr", slow_lr)
    if slow_lr not in SLOW_LR:
        raise invalid_argument(ValueError, where, "slow_lr", f"a number or one of {SLOW_LR}", slow_lr)
    return slow_lr


def _number(where: str, name: str, value: object, below: float = inf) -> Any:
    """Return a float, or a tensor with one; torch's own checks let NaN, infinity and True pass."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise invalid_argument(ValueError, where, name, "a number or a tensor with one", value)
    plain = value.item() if isinstance(value, Tensor) else value
    rule = "finite and at least 0" if below == inf else f"in [0, {below})"
    checked = check_number(where, name, plain, rule, lambda x: 0 <= x < below)
    return value if isinstance(value, Tensor) else checked


def _betas(where: str, name: str, value: object) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise invalid_argument(TypeError, where, name, "a pair of numbers", value)
    return _number(where, f"{name}[0]", value[0], below=1), _number(where, f"{name}[1]", value[1], below=1)


def _finite(where: str, name: str, value: object) -> float:
    return check_number(where, name, value, "finite", isfinite)


def _flag(where: str, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid_argument(TypeError, where, name, "True or False", value)
    return value


def _choice(where: str, name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise invalid_argument(TypeError, where, name, "True, False or None", value)
    return value


CHECKS: Mapping[str, Callable[[str, str, object], Any]] = {
    **dict.fromkeys(("lr", "momentum", "weight_decay", "eps"), _number),
    **dict.fromkeys(("nesterov", "maximize", "amsgrad", "capturable"), _flag),
    **dict.fromkeys(("foreach", "fused"), _choice),
    "dampening": _finite,
    "betas": _betas,
}


def checked(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of an optimizer or a group; torch checks few of the former and none of the latter."""
    return {name: CHECKS[name](where, name, value) if name in CHECKS else value for name, value in options.items()}


def _set_lr(group: Group, slow_lr: str | float) -> None:
    """Set the lr of a slow group; one that the group brings along goes first, as in torch."""
    if isinstance(slow_lr, str):
        group["slow_lr"] = slow_lr  # applied at each step, so that a schedule of "lr" cannot undo it
    else:
        group.setdefault("lr", slow_lr)
