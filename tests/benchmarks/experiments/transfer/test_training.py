"""Fine-tuning: what trains when under each method, pairing, decay, and evaluation."""

from typing import Any

import pytest
import torch
from helpers.cifar import images

from benchmarks.core.comparison import Job
from benchmarks.core.training import Loop
from benchmarks.experiments.transfer import experiment
from benchmarks.experiments.transfer.experiment import (
    CONSTANT,
    DECAY,
    MOBILENET,
    VARIANTS,
    TransferConfig,
)
from benchmarks.experiments.transfer.models import (
    BLOCK,
    FC,
    FULL,
    GRADUAL,
    METHODS,
    MULTIRATE,
    MULTIRATE_BLOCK,
    MULTIRATE_HELD,
    MobileNetV1,
)

CONFIG = TransferConfig(1, 1, (MOBILENET,), 3, images=9, validation=2, pixels=32, batch=4, lr=0.01, decay_lr=0.01)
ALL = {"fc", "stage3", "stage2", "stage1"}


@pytest.fixture(autouse=True)
def _given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven random images, two of them for validation, and a network that is not pretrained."""
    given = images(11)
    monkeypatch.setitem(experiment.DATA, "cifar10", ("CIFAR-10", 10, lambda *_: given))
    monkeypatch.setattr("benchmarks.experiments.transfer.models.pretrained", lambda *_: MobileNetV1(10))


def begin(method: str, variant: str = CONSTANT, steps: int = 6) -> Loop:
    job = Job("compare", steps, (MOBILENET, VARIANTS[variant]), torch.device("cpu"), None, method)
    return experiment.build(CONFIG, METHODS[method], 0, job)


def rate(group: dict[str, Any]) -> float:
    """The learning rate of a step."""
    return float(group["lr"] / (group["period"] if group.get("slow_lr") == "per_gradient" else 1))


def course(loop: Loop, steps: int = 6) -> tuple[list[set[str]], list[list[float]]]:
    """The parts that get a gradient at each step, and the learning rates of the groups."""
    seen, rates = [], []

    def watched(*_: Any) -> None:
        seen.append({name.partition(".")[0] for name, p in loop.model.named_parameters() if p.grad is not None})
        rates.append([rate(group) for group in loop.optimizer.param_groups])

    loop.optimizer.register_step_pre_hook(watched)
    for _ in range(steps):
        loop.step()
    return seen, rates


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (FULL, [ALL] * 6),
        (FC, [{"fc"}] * 6),
        (BLOCK, [{"fc", "stage3"}] * 6),
        (MULTIRATE, [ALL, *[{"fc"}] * 4, ALL]),
        (MULTIRATE_BLOCK, [ALL, *[{"fc", "stage3"}] * 4, ALL]),
        (GRADUAL, [{"fc"}] * 2 + [{"fc", "stage3"}] * 2 + [ALL - {"stage1"}] * 2),  # two steps an epoch
    ],
)
def test_what_trains_at_each_step(method: str, expected: list[set[str]]) -> None:
    assert course(begin(method))[0] == expected


def test_decay_is_linear_for_fast_and_slow_parts_with_rates_of_their_own() -> None:
    rates = course(begin(MULTIRATE_HELD, DECAY, steps=4), 4)[1]
    assert [sorted(pair) for pair in rates] == [pytest.approx([0.002 * x, 0.01 * x]) for x in (1, 0.75, 0.5, 0.25)]
