"""An optimizer of torch's with a slow part: what `MultirateSGD` and `MultirateAdamW` have in common."""

import warnings
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mrreg.errors import NoEffectWarning, check_int, invalid_argument
from mrreg.optim.drift import Group
from mrreg.optim.hyperparameters import check_rate, checked
from mrreg.optim.multirate import Multirate
from mrreg.optim.param_groups import Choice, read_groups, split
from mrreg.optim.validation import SLOW_LR

Params = ParamsT | nn.Module


class TwoScales(Multirate):
    """Train parameters with one optimizer class, the slow ones at every k-th step only.

    Args:
        base: Class of the optimizer.
        params: As in `MultirateSGD`, like all that follow.
        options: Options of the base.
        k: Period of the slow part.
        fast: Parts that train at every step.
        slow_lr: Step size of the slow part.
        drift: True if the slow part moves between its gradients.
        gradient: Gradient of the slow part.
        model: The model, where `params` is not.
    """

    def __init__(
        self,
        base: type[Optimizer],
        params: Params,
        options: dict[str, Any],
        k: int,
        fast: Choice | None,
        slow_lr: str | float,
        drift: bool,
        gradient: str,
        model: nn.Module | None,
    ) -> None:
        where = type(self).__name__
        options, k = checked(where, options), check_int(where, "k", k)
        slow_lr = _check_slow_lr(where, slow_lr)
        given = [checked(where, group) for group in read_groups(where, "params", params)[0]]
        groups = _with_periods(where, params, given, k, fast)
        for group in groups:
            if group["period"] > 1 and isinstance(slow_lr, str):
                group["slow_lr"] = slow_lr  # applied at each step, so that a schedule of "lr" cannot undo it
            elif group["period"] > 1:
                group.setdefault("lr", slow_lr)
        if isinstance(params, nn.Module):
            if model is not None and model is not params:
                rule = "left out where params is a module"
                raise invalid_argument(ValueError, where, "model", rule, type(model).__name__)
            model = params
        parts: list[tuple[Optimizer, None]] = [(base(groups, **options), None)]
        super().__init__(parts, drift=drift, gradient=gradient, model=model)
        self._layouts.append([group["params"] for group in given])


def _check_slow_lr(where: str, slow_lr: object) -> Any:
    """Return one of the words, or a number."""
    if isinstance(slow_lr, str) and slow_lr not in SLOW_LR:
        raise invalid_argument(ValueError, where, "slow_lr", f"a number or one of {SLOW_LR}", slow_lr)
    return slow_lr if isinstance(slow_lr, str) else check_rate(where, "slow_lr", slow_lr)


def _with_periods(where: str, params: Params, groups: list[Group], k: int, fast: Choice | None) -> list[Group]:
    """Return groups with a period each: 1 for those of `fast`, k for those marked slow."""
    if fast is not None:
        if any(group.get("period") is not None for group in groups):
            rule = "left out where groups have periods of their own"
            remedy = "Let `split` mark the groups, or give `fast`."
            raise invalid_argument(ValueError, where, "fast", rule, "both", remedy)
        groups = split(params if isinstance(params, nn.Module) else groups, fast=fast)
    elif k > 1 and not any("period" in group for group in groups):
        problem = f"k={k} has no effect, since all parameters are fast"
        remedy = "Name the fast ones, as in fast='fc', or give groups from split(); k=1 is ordinary training."
        warnings.warn(f"{where}: {problem}. {remedy}", NoEffectWarning, stacklevel=4)
    periods = [k if group.get("period", 1) is None else group.get("period", 1) for group in groups]
    return [g | {"period": check_int(where, "period", period)} for g, period in zip(groups, periods, strict=True)]
