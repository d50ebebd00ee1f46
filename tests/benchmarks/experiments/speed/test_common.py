"""Speed with masks: a call trains whole cycles, dropout changes nothing else, targets are those that were promised."""

from typing import Any

import pytest
import torch

from benchmarks.experiments.speed import masks, thin
from benchmarks.experiments.speed.common import OPTIMIZERS, Case, training


def test_targets_of_masks_are_those_that_were_promised() -> None:
    targets = {case.name: case.target for case in masks.PRESETS["cpu"].cases}
    assert targets == {
        "784-800-10, batch 128, SGD": 1.40,
        "784-800-10, batch 512, SGD": 1.25,
        "2 encoder layers of 200, batch 20, SGD": 1.10,
        "784-800-10, batch 128, SGD with momentum": 1.50,
        "784-800-10, batch 128, AdamW": 1.50,
        "784-800-10, batch 128, SGD, compiled": 1.25,
        "784-800-10, batch 512, SGD, compiled": 1.25,
    }


@pytest.mark.parametrize(("module", "ours", "name"), [(masks, "masked", masks.SMALL), (thin, "thin", "8-16-16-4")])
def test_a_call_trains_whole_cycles(module: Any, ours: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.optim.Optimizer] = []

    def noted(parameters: Any) -> torch.optim.Optimizer:
        made.append(torch.optim.SGD(parameters, lr=0.1))
        return made[0]

    monkeypatch.setitem(OPTIMIZERS, "SGD", noted)
    case, network = Case(name, k=3, cycles=2), module.NETWORKS[name]
    training(case, network.build(case, ours), network.inputs(), driven=True)()
    assert made[0].param_groups[0]["mask_clock"] == 6


@pytest.mark.parametrize("name", thin.NETWORKS)
def test_dropout_changes_no_parameter(name: str) -> None:
    build = thin.NETWORKS[name].build
    plain, dropout = ([p.shape for p in build(Case(name), way).parameters()] for way in ("plain", "dropout"))
    assert plain == dropout
