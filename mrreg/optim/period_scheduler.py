"""Changing the periods of a `Multirate` while it trains."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from mrreg.errors import NoEffectWarning, check_int, invalid_argument
from mrreg.optim.validation import check_periods

Rule = Callable[[int], int]


class PeriodScheduler:
    """Set the periods of slow parts from the number of `step()` calls, as `LambdaLR` sets learning rates.

    Call `step()` after the optimizer's, once per epoch or once per batch. A new period takes effect at the next sync
    step of its part, so no cycle is cut short.

    Args:
        optimizer: A `Multirate`, `MultirateSGD` or `MultirateAdamW`.
        period_lambda: From the number of calls, 0 at construction, to the period: one function for all groups with a
            period above 1 at construction, or a list with one function, or None for no change, per parameter group.
        last_epoch: The number of calls so far less one; -1 at the start.

    Raises:
        TypeError: If `optimizer` has no periods, or a function is none or returns no whole number.
        ValueError: If a period is below 1, or the periods do not divide each other; nothing has changed then.

    Warns:
        NoEffectWarning: If there is one function and no group for it.

    Example:
        >>> import mrreg
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = mrreg.MultirateSGD(model.parameters(), lr=0.1, k=2, fast=model[2])
        >>> scheduler = mrreg.PeriodScheduler(optimizer, lambda epoch: 2 if epoch < 10 else 5)
        >>> for _ in range(10):
        ...     scheduler.step()
        >>> scheduler.get_last_period()
        [1, 5]

    Note:
        Save it beside the optimizer: `state_dict()` holds the count and, like torch's `LambdaLR`, no functions.
    """

    def __init__(self, optimizer: Optimizer, period_lambda: Rule | Sequence[Rule | None], last_epoch: int = -1) -> None:
        where = "PeriodScheduler"
        groups = getattr(optimizer, "param_groups", [])
        if not groups or not all("initial_period" in group for group in groups):
            rule = "a Multirate, MultirateSGD or MultirateAdamW"
            raise invalid_argument(TypeError, where, "optimizer", rule, type(optimizer).__name__)
        if callable(period_lambda):
            rules = [period_lambda if group["initial_period"] > 1 else None for group in groups]
            if not any(rules):
                problem = "no group has had a period above 1 at construction, so the function sets none"
                remedy = "Build the optimizer with such a period, or give a list with one function or None per group."
                warnings.warn(f"{where}: {problem}. {remedy}", NoEffectWarning, stacklevel=2)
        elif isinstance(period_lambda, Sequence) and len(period_lambda) == len(groups):
            rules = list(period_lambda)
        else:
            rule = f"a function, or a list with one for each of the {len(groups)} parameter groups"
            raise invalid_argument(TypeError, where, "period_lambda", rule, period_lambda)
        for each in rules:
            if each is not None and not callable(each):
                raise invalid_argument(TypeError, where, "period_lambda", "made of functions and None", each)
        self.optimizer = optimizer
        self.period_lambdas = rules
        self.last_epoch = check_int(where, "last_epoch", last_epoch, -1)
        self.step()

    def step(self) -> None:
        """Count one more call and set the periods."""
        self._set(self.last_epoch + 1)

    def _set(self, epoch: int) -> None:
        """Set the periods of a count; where they do not fit, nothing changes."""
        groups = self.optimizer.param_groups
        wanted = [
            {"period": group["period"] if rule is None else rule(epoch)}
            for group, rule in zip(groups, self.period_lambdas, strict=True)
        ]
        check_periods("PeriodScheduler", wanted)
        for group, new in zip(groups, wanted, strict=True):
            group["period"] = int(new["period"])
        self.last_epoch = epoch

    def get_last_period(self) -> list[int]:
        """The periods set last, one per parameter group."""
        return [group["period"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What has to be saved."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved count, before or after the optimizer has loaded its own state.

        Args:
            state_dict: From `state_dict()`.
        """
        where = "PeriodScheduler.load_state_dict"
        if not isinstance(state_dict, dict) or "last_epoch" not in state_dict:
            raise invalid_argument(ValueError, where, "state_dict", "that of a PeriodScheduler", state_dict)
        self._set(check_int(where, "last_epoch", state_dict["last_epoch"], 0))
