"""`MultirateSGD` and `MultirateAdamW`: torch's SGD and AdamW with a slow part."""

import sys
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mrreg.errors import check, check_int, check_number, warn
from mrreg.optim.checks import SLOW_LR
from mrreg.optim.clock import Group
from mrreg.optim.multirate import Multirate
from mrreg.optim.param_groups import Choice, read_groups, split

Params = ParamsT | nn.Module
DEFAULT_LR = 1e-3  # that of torch.optim


class TwoScales(Multirate):
    """Trains parameters with one optimizer class, the slow ones at every k-th step only; `MultirateSGD` says how."""

    base: ClassVar[type[Optimizer]]

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        k: int = 5,
        fast: Choice | None = None,
        *,
        drift: bool = True,
        slow_lr: str | float = "coupled",
        gradient: str = "sync",
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        where = type(self).__name__
        lr = _default_lr(where) if lr is None else lr
        k = check_int(where, "k", k)
        if isinstance(slow_lr, str):  # applied at each step, so that a schedule of "lr" cannot undo it
            check(slow_lr in SLOW_LR, where, "slow_lr", f"a number or one of {SLOW_LR}", slow_lr)
            own: Group = {"slow_lr": slow_lr}
        else:
            own = {"lr": check_number(where, "slow_lr", slow_lr, "at least 0", lambda x: x >= 0)}
        groups = _with_periods(where, params, read_groups(where, "params", params)[0], k, fast)
        groups = [own | group if group["period"] > 1 else group for group in groups]
        if isinstance(params, nn.Module) and model is None:
            model = params
        base = self.base(groups, lr=lr, **options)  # type: ignore[call-arg]
        super().__init__([(base, None)], drift=drift, gradient=gradient, model=model)


class MultirateSGD(TwoScales):
    """`torch.optim.SGD` that trains most of a network at every k-th step only: the paper's optimizer.

    Fine-tuning with a small fast part takes about half the time of ordinary training. Memory as in `Multirate`.
    Update at step t (Algorithm 1; with weight decay Algorithm A1):

        p_S <- mu * p_S + grad_S + omega * theta_S       if t mod k == 0
        theta_S <- theta_S - lr * p_S                    every step
        p_F, theta_F <- the same, with a gradient        every step

    Args:
        params: The model; or parameters, named parameters or groups, as in torch, with `model`.
        lr: Step size per step, for both parts. Paper: h_F, that is h / k. Default: 1e-3, as in torch.
        k: Period of the slow part: it gets a gradient at every k-th step. At least 1; 1 is ordinary training. Paper: k.
        fast: Parts that train at every step, in the forms of `split`; all others are slow. Paper: theta_F. None: groups
            say it by a "period" (of None: k), as `split` makes them; groups without one are fast.
        drift: True: the slow part keeps moving between its gradients (Algorithm 1). False: it moves k times as far
            once per cycle (Algorithm 2).
        slow_lr: Step size of the slow part: "coupled", lr per step as in the paper, so k * lr per gradient;
            "per_gradient", lr / k per step, so that one gradient moves it as far as in ordinary training; or a number,
            which becomes the groups' "lr". No schedule undoes the words.
        gradient: "sync", "mean" or "sum", as in `Multirate`, for the slow part.
        model: As in `Multirate`; left out where `params` is the model.
        options: Those of `torch.optim.SGD`. Paper: momentum mu; weight_decay omega, once per gradient.

    Raises:
        TypeError: If an argument is of the wrong kind, or the model is missing.
        ValueError: If a number is out of range, or `fast` does not fit `params`.

    Warns:
        NoEffectWarning: As in `Multirate`, and if k > 1 and no parameter is slow.

    Example:
        >>> import mrreg, torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = mrreg.MultirateSGD(model, lr=1e-3, k=5, fast="2", momentum=0.9)
        >>> for _ in range(6):
        ...     model(torch.randn(3, 4)).square().mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> optimizer.due
        (True, False)

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, Algorithms 1, 2 and A1.
    """

    base = torch.optim.SGD


class MultirateAdamW(TwoScales):
    """`torch.optim.AdamW` that trains most of a network at every k-th step only.

    For the Transformers that are fine-tuned with AdamW. Moments and step count of the slow part advance at its
    gradients only; in between it repeats the step it took, decay included, which needs one tensor per slow parameter.
    Update at step t, with d_S the displacement of AdamW's step per unit of lr:

        d_S <- AdamW's at the new gradient       if t mod k == 0
        theta_S <- theta_S - lr * d_S            every step

    Its size is lr whatever the gradient, so that holding it multiplies the noise: try `slow_lr="per_gradient"` first.

    Args: those of `MultirateSGD`, and the options of `torch.optim.AdamW`; weight_decay is part of the direction.

    Example:
        >>> import mrreg
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = mrreg.MultirateAdamW(model, lr=2e-5, k=5, fast="2", slow_lr="per_gradient", weight_decay=0.1)
        >>> [(group["period"], group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.1), (5, 0.1)]
    """

    base = torch.optim.AdamW


def _default_lr(where: str) -> float:
    """Return torch's default, and warn where a trainer has another rate that it does not pass on."""
    arguments = getattr(sys._getframe(2).f_locals.get("self"), "args", None)
    rate = getattr(arguments, "learning_rate", DEFAULT_LR)
    if rate != DEFAULT_LR:
        remedy = 'Name "lr" among the options of the optimizer.'
        warn(f"{where}: lr was left out and is {DEFAULT_LR}, since the trainer does not pass its {rate} on. {remedy}")
    return DEFAULT_LR


def _with_periods(where: str, params: Params, groups: list[Group], k: int, fast: Choice | None) -> list[Group]:
    """Return groups with a period each: 1 for those of `fast`, k for those marked slow."""
    if fast is not None:
        groups = split(params if isinstance(params, nn.Module) else groups, fast=fast)
    elif k > 1 and not any("period" in group for group in groups):
        remedy = "Name the fast ones, as in fast='fc', or give groups from split(); k=1 is ordinary training."
        warn(f"{where}: k={k} has no effect, since all parameters are fast. {remedy}")
    periods = [k if group.get("period", 1) is None else group.get("period", 1) for group in groups]
    return [g | {"period": check_int(where, "period", period)} for g, period in zip(groups, periods, strict=True)]
