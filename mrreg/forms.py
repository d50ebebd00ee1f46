"""`MultirateSGD` and `MultirateAdamW`: the engine over one base optimizer, its groups divided by period."""

from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mrreg.checks import number, whole
from mrreg.errors import bad
from mrreg.optim import Multirate
from mrreg.split import Choice, split

Group = dict[str, Any]
SLOW_LR = ("coupled", "per_gradient")


class MultirateSGD(Multirate):
    """`torch.optim.SGD` that trains most of a network at every k-th step only: the paper's optimizer.

    Fine-tuning with a small fast part takes about half the time of ordinary training, and the loop is unchanged. With
    momentum and without Nesterov's it needs no memory beyond `torch.optim.SGD`'s; else, with drift, one tensor per slow
    parameter.

    Update at step t (Algorithm 1; with weight decay Algorithm A1):

        p_S <- mu * p_S + grad_S + omega * theta_S       if t mod k == 0
        theta_S <- theta_S - lr * p_S                    every step
        p_F, theta_F <- the same, with a gradient        every step

    Args:
        params: Parameters, named parameters or groups, as in torch.
        lr: Step size per step, for both parts. Paper: h_F, that is h / k.
        k: Period of the slow part: it gets a gradient at every k-th step. At least 1; 1 is ordinary training. Paper: k.
        fast: What trains at every step, in the forms of `split`: modules, parameters, or names where `params` are
            named. All other parameters are slow. Paper: theta_F. None: all are fast, but for groups with a "period"
            (None stands for k), as `split` makes them.
        momentum: As in torch. Paper: mu.
        dampening: As in torch.
        nesterov: As in torch.
        weight_decay: As in torch, once per gradient. Paper: omega.
        maximize: As in torch.
        foreach: As in torch.
        fused: As in torch.
        drift: Whether the slow part keeps moving between its gradients (Algorithm 1) or moves k times as far at once
            (Algorithm 2).
        slow_lr: Step size of the slow part: "coupled", lr per step as in the paper, so k * lr per gradient;
            "per_gradient", lr / k per step, so that one gradient moves it as far as in ordinary training; or a number.
            It becomes the "lr" of the slow groups, so schedulers scale it; a group's own "lr" goes before a number.
        gradient: "sync", "mean" or "sum", as in `Multirate`, for the slow part.

    Raises:
        TypeError: If something is of another kind than above.
        ValueError: If a number is out of range, or `fast` does not fit `params`.

    Example:
        >>> import mrreg
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = mrreg.MultirateSGD(model.parameters(), lr=1e-3, k=5, fast=model[2], momentum=0.9)
        >>> for _ in range(6):
        ...     model(torch.randn(3, 4)).square().mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> optimizer
        MultirateSGD (drift=True, 6 steps done
          part 0: SGD, period 1, 2 tensors, 18 parameters, lr 0.001, due
          part 1: SGD, period 5, 2 tensors, 40 parameters, lr 0.001, 1 of 5
        )

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, Algorithms 1, 2 and A1.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        k: int = 5,
        fast: Choice | None = None,
        *,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        drift: bool = True,
        slow_lr: str | float = "coupled",
        gradient: str = "sync",
    ) -> None:
        where = "MultirateSGD"
        options: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
        }
        options = _checked(where, options)
        base = torch.optim.SGD(_groups(where, params, options["lr"], k, fast, slow_lr), **options)
        super().__init__([(base, None)], drift=drift, gradient=gradient)


class MultirateAdamW(Multirate):
    """`torch.optim.AdamW` that trains most of a network at every k-th step only.

    For the Transformers that are fine-tuned with AdamW. Moments and step count of the slow part advance at its
    gradients only; in between it repeats the step it took, decay included. With drift it needs one tensor per slow
    parameter beyond `torch.optim.AdamW`.

    Update at step t, with d_S the displacement of AdamW's step per unit of lr:

        d_S <- AdamW's at the new gradient       if t mod k == 0
        theta_S <- theta_S - lr * d_S            every step

    Args:
        params: Parameters, named parameters or groups, as in torch.
        lr: Step size per step, for both parts.
        k: Period of the slow part: it gets a gradient at every k-th step. At least 1; 1 is ordinary training. Paper: k.
        fast: What trains at every step, in the forms of `split`: modules, parameters, or names where `params` are
            named. All other parameters are slow. Paper: theta_F. None: all are fast, but for groups with a "period"
            (None stands for k), as `split` makes them.
        betas: As in torch.
        eps: As in torch.
        weight_decay: As in torch: decoupled, and part of the direction that is held.
        amsgrad: As in torch.
        maximize: As in torch.
        foreach: As in torch.
        capturable: As in torch.
        fused: As in torch.
        drift: Whether the slow part keeps moving between its gradients (Algorithm 1) or moves k times as far at once
            (Algorithm 2).
        slow_lr: Step size of the slow part: "coupled", lr per step as in the paper, so k * lr per gradient;
            "per_gradient", lr / k per step, so that one gradient moves it as far as in ordinary training; or a number.
            It becomes the "lr" of the slow groups, so schedulers scale it; a group's own "lr" goes before a number.
        gradient: "sync", "mean" or "sum", as in `Multirate`, for the slow part.

    Raises:
        TypeError: If something is of another kind than above.
        ValueError: If a number is out of range, or `fast` does not fit `params`.

    Example:
        >>> import mrreg
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> decay = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias], "weight_decay": 0.0}]
        >>> optimizer = mrreg.MultirateAdamW(decay, lr=2e-5, k=5, fast=model[2].weight, slow_lr="per_gradient")
        >>> [(group["period"], group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.01), (5, 0.01), (5, 0.0)]

    Note:
        Adam's step has size lr whatever the gradient, so holding it for k steps at the coupled lr multiplies the noise;
        `slow_lr="per_gradient"` is the better start for fine-tuning.

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 3.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        k: int = 5,
        fast: Choice | None = None,
        *,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        fused: bool | None = None,
        drift: bool = True,
        slow_lr: str | float = "coupled",
        gradient: str = "sync",
    ) -> None:
        where = "MultirateAdamW"
        options: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "fused": fused,
        }
        options = _checked(where, options)
        base = torch.optim.AdamW(_groups(where, params, options["lr"], k, fast, slow_lr), **options)
        super().__init__([(base, None)], drift=drift, gradient=gradient)


def _groups(
    where: str, params: ParamsT, lr: float | Tensor, k: int, fast: Choice | None, slow_lr: str | float
) -> list[Group]:
    """The groups with a period each: those of `fast` have 1, those marked slow have k."""
    k = whole(where, "k", k)
    slow_lr = _rate(where, slow_lr)
    if isinstance(params, Tensor | Mapping | str | nn.Module) or not isinstance(params, Iterable):
        raise bad(TypeError, where, "params", "parameters, named parameters or parameter groups", type(params).__name__)
    items: list[Any] = list(params)
    if not items:
        raise bad(ValueError, where, "params", "at least one parameter", [], "An iterator ends after use.")
    groups: list[Group] = (
        [_checked(where, item) for item in items] if items and isinstance(items[0], Mapping) else [{"params": items}]
    )
    if fast is not None:
        if any(group.get("period") is not None for group in groups):
            rule = "left out where groups have periods of their own"
            raise bad(ValueError, where, "fast", rule, "both", "Let `split` mark the groups, or give `fast`.")
        groups = split(groups, fast=fast)
    for group in groups:
        if group.get("period", 1) is None:
            group["period"] = k
        period = whole(where, "period", group.setdefault("period", 1))
        if period > 1:
            _set_lr(group, group.get("lr", lr), period, slow_lr)
    return groups


def _rate(where: str, slow_lr: object) -> Any:
    """A word, or a number."""
    if not isinstance(slow_lr, str):
        return _number(where, "slow_lr", slow_lr)
    if slow_lr not in SLOW_LR:
        raise bad(ValueError, where, "slow_lr", f"a number or one of {SLOW_LR}", slow_lr)
    return slow_lr


def _number(where: str, name: str, value: object, below: float = inf) -> Any:
    """A tensor with a number, or a float; torch's own checks let NaN, infinity, True and NumPy's numbers pass."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise bad(ValueError, where, name, "a number or a tensor with one", value)
    plain = value.item() if isinstance(value, Tensor) else value
    rule = "finite and at least 0" if below == inf else f"in [0, {below})"
    checked = number(where, name, plain, rule, lambda x: 0 <= x < below)
    return value if isinstance(value, Tensor) else checked


def _betas(where: str, name: str, value: object) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise bad(TypeError, where, name, "a pair of numbers", value)
    return _number(where, f"{name}[0]", value[0], below=1), _number(where, f"{name}[1]", value[1], below=1)


def _finite(where: str, name: str, value: object) -> float:
    return number(where, name, value, "finite", isfinite)


def _flag(where: str, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise bad(TypeError, where, name, "True or False", value)
    return value


def _choice(where: str, name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise bad(TypeError, where, name, "True, False or None", value)
    return value


CHECKS: Mapping[str, Callable[[str, str, object], Any]] = {
    **dict.fromkeys(("lr", "momentum", "weight_decay", "eps"), _number),
    **dict.fromkeys(("nesterov", "maximize", "amsgrad", "capturable"), _flag),
    **dict.fromkeys(("foreach", "fused"), _choice),
    "dampening": _finite,
    "betas": _betas,
}


def _checked(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the optimizer or of one group; torch checks few of the former and none of the latter."""
    return {name: CHECKS[name](where, name, value) if name in CHECKS else value for name, value in options.items()}


def _set_lr(group: Group, lr: float | Tensor, period: int, slow_lr: str | float) -> None:
    """The lr of a slow group; one that the group brings along counts as any other group option does in torch."""
    if slow_lr == "per_gradient":
        group["lr"] = lr / period
    elif not isinstance(slow_lr, str):
        group.setdefault("lr", slow_lr)
