"""A k that changes while it trains: by a schedule, or by how well the held direction still fits the gradient."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import mrreg
from benchmarks.experiments.text.encoder import Classifier
from benchmarks.experiments.text.peer_methods import Prepare, Progress
from benchmarks.experiments.text.recipes import Recipe
from benchmarks.experiments.text.training import Trainee

LEAST, MOST = 2, 10
FAST = "half"
LOW, HIGH = 0.0, 0.0  # cosines below and above which k falls and rises


@dataclass
class Noted(Trainee):
    """A `Trainee` with something to say afterwards.

    Args:
        notes: Plain numbers for the record.
    """

    notes: Callable[[], dict[str, float]] = dict


def schedule(first: int, last: int) -> Prepare:
    """A k that goes from one number to another, linearly in the seconds spent; the slow part's lr is lr / k."""

    def prepare(net: Classifier, lr: float, seed: int, progress: Progress) -> Trainee:
        trainee = _trainee(net, lr)
        scheduler = mrreg.PeriodScheduler(
            trainee.optimizer, lambda _: first + round((last - first) * min(1.0, progress()))
        )
        divide_lr(trainee.optimizer, lr)
        return replace(trainee, after=scheduler.step)

    return prepare


def adaptive(net: Classifier, lr: float, seed: int, progress: Progress) -> Trainee:
    """A k that rises while the held direction agrees with the fresh gradient, and falls where it does not."""
    trainee = _trainee(net, lr)
    adapt = AdaptiveK(trainee.optimizer)
    divide_lr(trainee.optimizer, lr)
    return Noted(trainee.model, trainee.optimizer, notes=adapt.notes)


def _trainee(net: Classifier, lr: float) -> Trainee:
    return Recipe(fast=FAST, k=5, optimizer="AdamW", lr=lr, slow_lr="per_gradient").prepare(net)


def slow_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The groups that were slow at construction."""
    return [group for group in optimizer.param_groups if group["initial_period"] > 1]


def divide_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Let every gradient of the slow part move it as far as in ordinary training: lr / k per step, with the k of now.

    It is set when a cycle begins, since that is when a new k takes effect.
    """

    def before_step(*_: object) -> None:
        for group in slow_groups(optimizer):
            if group["clock"] == group["next_sync"]:
                group["lr"] = lr / group["period"]

    optimizer.register_step_pre_hook(before_step)


class AdaptiveK:
    """Adds 1 to k where the cosine of held direction and fresh gradient is above `high`, takes 1 where below `low`.

    At a sync step both are there for free: the direction that was held, and the gradient at the new place.

    Args:
        optimizer: A `MultirateSGD` or `MultirateAdamW` with drift.
        low: Below it, k falls.
        high: Above it, k rises.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, low: float = LOW, high: float = HIGH) -> None:
        self.low, self.high = low, high
        self.cosines: list[float] = []
        self.periods: list[int] = []
        optimizer.register_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        groups = slow_groups(optimizer)
        if any(group["clock"] != group["next_sync"] for group in groups):
            return
        cosine = agreement(optimizer, groups)
        if cosine is None:
            return
        period = groups[0]["period"] + (cosine > self.high) - (cosine < self.low)
        period = min(MOST, max(LEAST, period))
        for group in groups:
            group["period"] = period
        self.cosines.append(cosine)
        self.periods.append(period)

    def notes(self) -> dict[str, float]:
        """Means over the sync steps so far."""
        if not self.cosines:
            return {}
        return {"mean cosine": fmean(self.cosines), "mean k": fmean(self.periods)}


def agreement(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> float | None:
    """The cosine of the direction that groups were held along and their fresh gradient; None at the first gradient."""
    pairs = [
        (held, p.grad)
        for group in groups
        for p in group["params"]
        if p.grad is not None and (held := _held(optimizer.state.get(p, {}))) is not None
    ]
    if not pairs:
        return None
    dot = sum(float(torch.sum(held * gradient)) for held, gradient in pairs)
    squares = [sum(float(torch.sum(each * each)) for each in side) for side in zip(*pairs, strict=True)]
    return dot / math.sqrt(math.prod(squares)) if all(squares) else None


def _held(state: dict[str, Any]) -> Tensor | None:
    return state.get("direction", state.get("momentum_buffer"))
