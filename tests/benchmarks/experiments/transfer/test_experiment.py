"""The transfer benchmark as data: what a search chooses, what a step costs, what the large networks train on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cifar import write_cifar100

from benchmarks.core.comparison import Job
from benchmarks.core.records import Record, new
from benchmarks.experiments.transfer import experiment as transfer
from benchmarks.experiments.transfer.experiment import MOBILENET, PRESETS, RESNET50, comparisons, search
from benchmarks.experiments.transfer.models import BLOCK, FC, FULL, GRADUAL, METHODS, MULTIRATE, SOURCES


def record(numbers: dict[str, dict[str, Any]]) -> Record:
    made = new("transfer", "cpu", PRESETS["cpu"], torch.device("cpu"))
    for method, result in numbers.items():
        made.add(method, method, (0,), 1.0, [result])
    return made


@pytest.mark.slow
def test_resnet_50_trains_from_saved_weights_on_the_files_of_cifar_100(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES["resnet50"]
    (tmp_path / source.file).parent.mkdir()
    state = source.build().state_dict()
    torch.save(state, tmp_path / source.file)
    write_cifar100(tmp_path, 12, 4, monkeypatch)
    config = replace(PRESETS["gpu"], pool=12, images=8, validation=4, test_images=4, pixels=32, batch=4, epochs=1)
    for name in (FULL, MULTIRATE):
        (comparison,) = comparisons(replace(config, pairs=(RESNET50,)))
        job = Job("compare", 2, comparison.setting, torch.device("cpu"), tmp_path, name)
        loop = transfer.build(config, METHODS[name], 0, job)
        assert torch.equal(loop.model.get_parameter("conv1.weight"), state["conv1.weight"])
        loop.step()
        assert not torch.equal(loop.model.get_parameter("conv1.weight"), state["conv1.weight"])
        assert loop.model(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
        assert 0 <= loop.evaluate("test") <= 100


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
