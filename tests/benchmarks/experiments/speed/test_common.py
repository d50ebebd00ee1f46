"""Speed with masks: a call trains whole cycles, dropout changes nothing else, targets are those that were promised."""

from typing import Any

import pytest
import torch

from benchmarks.experiments.speed import masks, thin
from benchmarks.experiments.speed.common import OPTIMIZERS, Case, training


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
