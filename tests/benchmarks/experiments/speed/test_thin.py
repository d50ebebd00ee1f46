"""The benchmark of thin training: what it times, and which ratios it aims at."""

from pathlib import Path

import pytest
import torch

from benchmarks.core import runner
from benchmarks.core.records import load
from benchmarks.experiments.speed.thin import BENCHMARK, NETWORKS, PRESETS, TARGETS, Case, trainer


def test_names_of_cases_are_unique() -> None:
    for config in PRESETS.values():
        assert len({case.name for case in config.cases}) == len(config.cases)
    assert set(TARGETS) < set(NETWORKS)


@pytest.mark.parametrize("network", NETWORKS)
def test_dropout_changes_no_parameter(network: str) -> None:
    shapes = [[p.shape for p in NETWORKS[network].build(p).parameters()] for p in (0.0, 0.5)]
    assert shapes[0] == shapes[1]


def test_a_call_trains_whole_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[torch.optim.Optimizer] = []
    plain_step = torch.optim.SGD.step

    def counted(optimizer: torch.optim.SGD) -> None:
        steps.append(optimizer)
        plain_step(optimizer)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    trainer(Case("8-16-16-4", "SGD", k=3, cycles=2), "thin", torch.randn(2, 8))()
    # `attach` tries the optimizer's class on a parameter of its own first
    driven = [optimizer for optimizer in steps if "mask_clock" in optimizer.param_groups[0]]
    assert len(driven) == driven[0].param_groups[0]["mask_clock"] == 6


def test_smoke_times_every_case(tmp_path: Path) -> None:
    outcome = runner.run(BENCHMARK, "smoke", tmp_path)
    assert outcome.finished == outcome.total == 2 * len(PRESETS["smoke"].cases)
    record = load(outcome.path)
    for case in PRESETS["smoke"].cases:
        for way in ("thin", "dropout"):
            assert all(ratio > 0 for ratio in record.numbers(case.name, way).values())
