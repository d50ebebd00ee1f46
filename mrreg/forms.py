"""`MultirateSGD` and `MultirateAdamW`: the engine over one base optimizer, its groups divided by period."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mrreg.checks import number, whole
from mrreg.errors import bad
from mrreg.optim import Multirate
from mrreg.split import Choice, split

Group = dict[str, Any]
SLOW_LR = ("coupled", "per_gradient")


class MultirateSGD(Multirate):
    """Docstring."""

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
        groups = _groups("MultirateSGD", params, lr, k, fast, slow_lr)
        base = torch.optim.SGD(
            groups,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            nesterov=nesterov,
            weight_decay=weight_decay,
            maximize=maximize,
            foreach=foreach,
            fused=fused,
        )
        super().__init__([(base, None)], drift=drift, gradient=gradient)


class MultirateAdamW(Multirate):
    """Docstring."""

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
        groups = _groups("MultirateAdamW", params, lr, k, fast, slow_lr)
        base = torch.optim.AdamW(
            groups,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            fused=fused,
        )
        super().__init__([(base, None)], drift=drift, gradient=gradient)


def _groups(
    where: str, params: ParamsT, lr: float | Tensor, k: int, fast: Choice | None, slow_lr: str | float
) -> list[Group]:
    """The groups with a period each: those of `fast` have 1, those marked slow have k."""
    k = whole(where, "k", k)
    _check_slow_lr(where, slow_lr)
    if isinstance(params, Tensor | Mapping | str) or not isinstance(params, Iterable):
        raise bad(TypeError, where, "params", "parameters, named parameters or parameter groups", type(params).__name__)
    items: list[Any] = list(params)
    groups: list[Group] = (
        [dict(item) for item in items] if items and isinstance(items[0], Mapping) else [{"params": items}]
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


def _check_slow_lr(where: str, slow_lr: object) -> None:
    if isinstance(slow_lr, Tensor):
        slow_lr = slow_lr.item()
    if isinstance(slow_lr, str):
        if slow_lr not in SLOW_LR:
            raise bad(ValueError, where, "slow_lr", f"a number or one of {SLOW_LR}", slow_lr)
    else:
        number(
            where, "slow_lr", slow_lr, f"finite and at least 0, or one of {SLOW_LR}", lambda x: 0 <= x < float("inf")
        )


def _set_lr(group: Group, lr: float | Tensor, period: int, slow_lr: str | float) -> None:
    """The lr of a slow group; one that the group brings along counts as any other group option does in torch."""
    if slow_lr == "per_gradient":
        group["lr"] = lr / period
    elif not isinstance(slow_lr, str):
        group.setdefault("lr", slow_lr)
