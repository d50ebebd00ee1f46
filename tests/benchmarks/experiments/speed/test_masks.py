"""The benchmark of masked training: what it times, and which ratios it holds the library to."""

import math
from pathlib import Path

import pytest
import torch

from benchmarks.core import runner as harness
from benchmarks.core.records import Record, load
from benchmarks.experiments.speed.common import LR
from benchmarks.experiments.speed.masks import BENCHMARK, NETWORKS, PRESETS, SECTIONS, Case, trainer
from benchmarks.report import pages as report


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
        "784-800-784 hidden, batch 512, SGD": 0.75,
        "512-2048-512 hidden, batch 2048, SGD": 0.70,
        "2 encoder layers of 200 hidden, batch 20, SGD": 1.0,
    }
    assert all(config.seeds >= 5 for name, config in PRESETS.items() if name != "smoke")


def test_names_of_cases_are_unique() -> None:
    for config in PRESETS.values():
        assert len({case.name for case in config.cases}) == len(config.cases)


WAYS = ("plain", "masked", "dropout")


@pytest.mark.parametrize("network", NETWORKS)
def test_all_ways_train_the_same_parameters(network: str) -> None:
    shapes = [[p.shape for p in NETWORKS[network].build(way).parameters()] for way in WAYS]
    assert shapes[0] == shapes[1] == shapes[2]


def test_a_call_trains_whole_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[torch.optim.Optimizer] = []
    plain_step = torch.optim.SGD.step

    def counted(optimizer: torch.optim.SGD) -> None:
        if optimizer.param_groups[0]["lr"] == LR:  # not one on which `attach` tries something
            steps.append(optimizer)
        plain_step(optimizer)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    trainer(Case("4-8-4 hidden", 2, None, cycles=2), "masked", torch.randn(2, 4))()
    assert len(steps) == 10
    assert steps[0].param_groups[0]["mask_clock"] == 10


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    outcome = harness.run(BENCHMARK, "smoke", tmp_path_factory.mktemp("speed"))
    assert outcome.finished == outcome.total == len(PRESETS["smoke"].cases)
    return load(outcome.path)


@pytest.mark.slow
def test_smoke_record(record: Record) -> None:
    for case in PRESETS["smoke"].cases:
        for way in ("masked", "dropout"):
            ratios = list(record.numbers(case.name, way).values())
            assert len(ratios) == 2
            assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios)
        assert all(set(result["seconds per cycle"]) == set(WAYS) for result in record.results(case.name).values())


def filled(preset: str) -> Record:
    """A record with ratios just below every target, as far below nn.Dropout's."""
    record = Record("speed masks", preset, {}, "cpu", 1, {"torch": "x", "mrreg": "x"})
    for case in PRESETS[preset].cases:
        ratios = [(case.target or 1) - 0.01 - noise / 1000 for noise in range(3)]
        results = [{"masked": ratio, "dropout": ratio + 0.1} for ratio in ratios]
        record.add(case.name, case.name, (0, 1, 2), 1.0, list(results))
    return record


@pytest.mark.parametrize("preset", ["cpu", "gpu"])
def test_report_shows_a_preset_its_own_sections(preset: str, tmp_path: Path) -> None:
    chapters = report.chapters([(filled(preset), SECTIONS)], {})
    blocks = [block for chapter in chapters for block in chapter.blocks]
    assert len(blocks) == {"cpu": 2, "gpu": 1}[preset]
    for block in blocks:
        n = len(block.claims)
        assert block.verdict == {"cpu": f"{n} of {n} reproduced", "gpu": "measured"}[preset]
    assert all(claim.said == "reproduced" for block in blocks for claim in block.claims)
    assert sum(len(block.claims) for block in blocks) == {"cpu": 10 + 8, "gpu": 0}[preset]
    facts = [fact for block in blocks for fact in block.facts]
    assert len(facts) == len(PRESETS[preset].cases)
    assert sum("wanted" in fact for fact in facts) == sum(case.target is not None for case in PRESETS[preset].cases)
