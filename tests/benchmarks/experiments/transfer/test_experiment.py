"""The transfer benchmark as data: what a search chooses, what a step costs, what the large networks train on."""

from dataclasses import replace
from typing import Any

import torch

from benchmarks.core.records import Record, new
from benchmarks.experiments.transfer import experiment as transfer
from benchmarks.experiments.transfer.experiment import MOBILENET, PRESETS, comparisons, search
from benchmarks.experiments.transfer.models import BLOCK, FC, FULL, GRADUAL, METHODS, MULTIRATE


def record(numbers: dict[str, dict[str, Any]]) -> Record:
    made = new("transfer", "cpu", PRESETS["cpu"], torch.device("cpu"))
    for method, result in numbers.items():
        made.add(method, method, (0,), 1.0, [result])
    return made


def test_the_learning_rate_is_the_best_on_the_validation_images() -> None:
    scores = {0.001: 50.0, 0.002: 70.0, 0.004: 70.0, 0.008: 60.0}
    probe = record(
        {f"search {MOBILENET.title}: {BLOCK}, lr = {lr:g}": {"validation accuracy": y} for lr, y in scores.items()}
    )
    assert search(MOBILENET, tuple(scores)).grid[BLOCK] == [{"lr": lr} for lr in scores]
    tuned = replace(search(MOBILENET, ()), grid={BLOCK: [{"lr": lr} for lr in scores]})
    assert tuned.chosen(probe, BLOCK) == {"lr": 0.002}


def test_speed_up_is_the_ratio_of_every_turn() -> None:
    section = next(each for each in transfer.BENCHMARK.sections if "how many epochs" in each.title)
    probe = record({f"{MOBILENET.title}: cost": {"all": {FULL: [4.0, 9.0], MULTIRATE: [2.0, 3.0]}}})
    (row,) = [row for row in section.rows if row.label == MULTIRATE]
    assert list(row.values(probe)) == [2.0, 3.0]


def test_gradual_unfreezing_is_charged_by_what_trains_in_each_epoch() -> None:
    config = replace(PRESETS["cpu"], images=32)  # two steps an epoch
    costs = comparisons(config)[0].costs
    assert costs
    charged = [costs.charge(GRADUAL, METHODS[GRADUAL], step) for step in range(9)]
    assert charged == [FC, FC, BLOCK, BLOCK, "last 3 parts only", "last 3 parts only", *[FULL] * 3]
    assert set(charged) <= costs.also.keys()
    assert costs.charge(MULTIRATE, METHODS[MULTIRATE], 8) == MULTIRATE
