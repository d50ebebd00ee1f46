"""Fine-tuning: what trains when under each method, pairing, decay, and evaluation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.experiments.transfer import training as transfer_train
from benchmarks.experiments.transfer.data import Task
from benchmarks.experiments.transfer.models import MobileNetV1
from benchmarks.experiments.transfer.training import (
    BLOCK,
    FC,
    FULL,
    GRADUAL,
    METHODS,
    MULTIRATE,
    MULTIRATE_BLOCK,
    MULTIRATE_HELD,
    K,
    Setting,
    accuracy,
    batches,
    optimizer,
    train,
)

SETTING = Setting("mobilenet", pixels=32, batch=4, steps=6, lr=0.01)
ALL = {"fc", "stage3", "stage2", "stage1"}


def task(count: int = 9) -> Task:
    x = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    return Task(x, torch.arange(count) % 10, x, torch.arange(count) % 10)


def trained_parts(
    monkeypatch: pytest.MonkeyPatch, method: str, setting: Setting = SETTING
) -> tuple[list[set[str]], list[list[float]]]:
    """The parts that got a gradient at each step, and the learning rates of the groups."""
    seen: list[set[str]] = []
    rates: list[list[float]] = []
    plain = transfer_train.step

    def step(net: nn.Module, stepper: Any, x: Tensor, y: Tensor) -> None:
        seen.append({name.partition(".")[0] for name, p in net.named_parameters() if p.requires_grad})
        rates.append([group["lr"] for group in stepper.param_groups])
        plain(net, stepper, x, y)

    monkeypatch.setattr(transfer_train, "step", step)
    train(MobileNetV1(10).train(), METHODS[method], setting, task(), 0, ())
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
def test_what_trains_at_each_step(method: str, expected: list[set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained_parts(monkeypatch, method)[0] == expected


@pytest.mark.parametrize("method", METHODS)
def test_what_is_frozen_does_not_move_and_the_rest_does(method: str) -> None:
    net = MobileNetV1(10).train()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    train(net, METHODS[method], SETTING, task(), 0, ())
    moved = {name.partition(".")[0] for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {FC: {"fc"}, BLOCK: {"fc", "stage3"}, GRADUAL: ALL - {"stage1"}}.get(method, ALL)


@pytest.mark.parametrize("method", [FULL, MULTIRATE, MULTIRATE_HELD])
def test_options_reach_the_optimizer(method: str) -> None:
    groups = optimizer(
        MobileNetV1(10), METHODS[method], Setting("mobilenet", 32, 4, 1, 0.01, weight_decay=5e-4)
    ).param_groups
    assert all(group["momentum"] == 0.9 and group["weight_decay"] == 5e-4 for group in groups)
    rates = {group.get("period", 1): group["lr"] for group in groups}
    assert rates == pytest.approx({FULL: {1: 0.01}, MULTIRATE: {1: 0.01, K: 0.01}}.get(method, {1: 0.01, K: 0.002}))


def test_decay_is_linear_for_fast_and_slow_parts_with_rates_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    decaying = Setting("mobilenet", 32, 4, 4, 0.01, decay=True)
    rates = trained_parts(monkeypatch, MULTIRATE_HELD, decaying)[1]
    assert [sorted(pair) for pair in rates] == [pytest.approx([0.002 * x, 0.01 * x]) for x in (1, 0.75, 0.5, 0.25)]


def test_the_order_follows_from_the_seed_and_an_epoch_has_no_image_twice() -> None:
    def labels(seed: int) -> list[int]:
        stream = batches(task(8), 4, torch.Generator().manual_seed(seed))
        return [int(y) for _, ys in zip(range(4), stream, strict=False) for y in ys[1]]

    one, two, other = labels(1), labels(1), labels(2)
    assert one == two != other
    assert sorted(one[:8]) == sorted(one[8:]) == list(range(8))
    assert one[:8] != one[8:]


def test_evaluation_happens_where_asked_and_changes_nothing() -> None:
    def weights(evaluate: tuple[int, ...]) -> tuple[dict[int, float], dict[str, Tensor]]:
        torch.manual_seed(0)
        net = MobileNetV1(10).train()
        found = train(net, METHODS[MULTIRATE], SETTING, images, 3, evaluate)
        return found, net.state_dict()

    images = task()
    often, one = weights((2, 6))
    never, other = weights(())
    assert list(often) == [2, 6]
    assert never == {}
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_accuracy_counts_the_right_ones() -> None:
    class Says(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.one_hot(torch.zeros(len(x), dtype=torch.long), 10).float()

    assert accuracy(Says(), task(20), 32) == 10.0
