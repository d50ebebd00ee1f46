"""The benchmark of masked training: what it times, and which ratios it holds the library to."""

import pytest
import torch

from benchmarks.experiments.speed.common import LR
from benchmarks.experiments.speed.masks import PRESETS, Case, trainer


def test_targets_are_those_that_were_promised() -> None:
    promised = {case.name: case.target for case in PRESETS["cpu"].cases if case.target}
    assert promised == {
        "784-800-10, batch 128, SGD": 1.40,
        "784-800-10, batch 512, SGD": 1.25,
        "2 encoder layers of 200, batch 20, SGD": 1.10,
        "784-800-10, batch 128, SGD with momentum": 1.50,
        "784-800-10, batch 128, AdamW": 1.50,
        "784-800-10, batch 128, SGD, compiled": 1.25,
        "784-800-10, batch 512, SGD, compiled": 1.25,
    }
    assert all(config.seeds >= 5 for name, config in PRESETS.items() if name != "smoke")


def test_a_call_trains_whole_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[torch.optim.Optimizer] = []
    plain_step = torch.optim.SGD.step

    def counted(optimizer: torch.optim.SGD) -> None:
        if optimizer.param_groups[0]["lr"] == LR:  # not one on which `attach` tries something
            steps.append(optimizer)
        plain_step(optimizer)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    trainer(Case("4-8-4", 2, None, cycles=2), "masked", torch.randn(2, 4))()
    assert len(steps) == 10
    assert steps[0].param_groups[0]["mask_clock"] == 10
