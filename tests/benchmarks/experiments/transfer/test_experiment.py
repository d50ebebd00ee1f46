"""The transfer benchmark as data: runs, the search, equal seconds, sections, and a smoke run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cifar import write_cifar100

from benchmarks.core import runner as harness
from benchmarks.core.comparison import Job
from benchmarks.core.records import Record, load, new
from benchmarks.experiments.transfer import digits as transfer_digits
from benchmarks.experiments.transfer import experiment as transfer
from benchmarks.experiments.transfer.config import (
    BLOCK,
    CONSTANT,
    DECAY,
    FC,
    FULL,
    GRADUAL,
    METHODS,
    MOBILENET,
    MULTIRATE,
    PRESETS,
    RESNET20,
    RESNET34,
    RESNET50,
    WEIGHT_DECAY,
    Pair,
    search,
)
from benchmarks.experiments.transfer.experiment import SECONDS, comparisons
from benchmarks.experiments.transfer.models import SOURCES
from benchmarks.report import pages as report
from benchmarks.report.paper import ITEMS

runs = transfer.STUDY.runs


def cost_key(pair: Pair) -> str:
    return f"{pair.title}: cost"


def trial_key(pair: Pair, method: str, lr: float) -> str:
    return f"{pair.title}: search, lr {lr:g}: {method}"


def key(pair: Pair, variant: str, method: str) -> str:
    return f"{pair.title}: {variant}: {method}"


def record(numbers: dict[str, dict[str, Any]], preset: str = "cpu") -> Record:
    made = new("transfer", preset, PRESETS[preset], torch.device("cpu"))
    for method, result in numbers.items():
        made.add(method, method, (0,), 1.0, [result])
    return made


@pytest.mark.parametrize("preset", PRESETS)
def test_runs_are_distinct_and_what_they_need_comes_before_them(preset: str) -> None:
    found = runs(PRESETS[preset])
    assert len({run.key for run in found}) == len(found)
    for index, run in enumerate(found):
        before = {earlier.method for earlier in found[:index]}
        pair, variant = run.options.comparison.setting
        if run.options.what == "compare":
            assert cost_key(pair) in before
            if variant.own:
                assert {trial_key(pair, run.options.name, lr) for lr in PRESETS[preset].lrs} <= before


def test_fewer_seeds_decay_than_are_in_the_main_comparison() -> None:
    found = runs(PRESETS["cpu"])
    for variant, seeds in ((CONSTANT, PRESETS["cpu"].seeds), (WEIGHT_DECAY, PRESETS["cpu"].few)):
        mine = [run.seeds for run in found if run.method == key(MOBILENET, variant, MULTIRATE)]
        assert mine == [(seed,) for seed in range(seeds)]


@pytest.mark.parametrize("section", transfer.BENCHMARK.sections, ids=lambda section: str(section.title))
def test_every_row_claim_and_plot_names_a_method_that_is_run(section: Any) -> None:
    for preset in section.presets:
        known = {run.method for run in runs(PRESETS[preset])}
        timings = {"all": {name: [1.0, 2.0] for name, method in METHODS.items() if not method.gradual}}
        probe = record({name: {"accuracy": 1.0, SECONDS: 1.0} | timings for name in known}, preset)
        assert all(row.values(probe) for row in section.rows)
        assert all(claim.values(probe) for claim in section.claims)
        for plot in section.plots:
            assert set(getattr(plot, "methods", {}).values()) <= known


def test_figure_6_is_only_shown_where_resnet_50_has_run() -> None:
    (first, second) = [section for section in transfer.BENCHMARK.sections if section.item == "Figure 6"]
    assert first.presets == second.presets == frozenset({"gpu", "paper"})
    assert RESNET50.title in first.title


def test_the_papers_networks_are_said_to_be_not_run_where_only_the_small_one_has() -> None:
    chapters = report.chapters([(record({}), transfer.BENCHMARK.sections)], ITEMS)
    said = {(chapter.item, block.title): block.verdict for chapter in chapters for block in chapter.blocks}
    for item, title, needs in (
        ("Figure 4", f"{RESNET34.title}, {CONSTANT}", "weights pretrained on ImageNet"),
        ("Figure 5", f"{RESNET34.title}, {DECAY}", "weights pretrained on ImageNet"),
        ("Figure A10", f"{RESNET34.title}, {WEIGHT_DECAY}", "weights pretrained on ImageNet"),
        ("Figure 6", f"{RESNET50.title}, {CONSTANT}", "weights pretrained on ImageNet and CIFAR-100"),
    ):
        for how in ("equal epochs", "equal seconds"):
            expected = f"not run: needs {needs}: python -m benchmarks transfer --preset gpu"
            assert said[item, f"{title}: {how}"] == expected


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
    probe = record({trial_key(MOBILENET, FC, lr): {"validation accuracy": y} for lr, y in scores.items()})
    assert search(RESNET20, tuple(scores)).grid[FC] == [{"lr": lr} for lr in scores]
    tuned = replace(search(MOBILENET, ()), grid={FC: [{"lr": lr} for lr in scores]})
    assert tuned.chosen(probe, FC) == {"lr": 0.002}


def test_speed_up_is_the_ratio_of_every_turn() -> None:
    section = next(each for each in transfer.BENCHMARK.sections if "how many epochs" in each.title)
    probe = record({cost_key(MOBILENET): {"all": {FULL: [4.0, 9.0], MULTIRATE: [2.0, 3.0]}}})
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


def test_an_epoch_is_counted_without_reading_the_images() -> None:
    assert PRESETS["cpu"].epoch(MOBILENET) == 40
    assert PRESETS["paper"].epoch(MOBILENET) == 48_000 // 32
    assert replace(PRESETS["cpu"], images=None, pool=1100).epoch(MOBILENET) == 100 // 16


@pytest.mark.data
@pytest.mark.parametrize(("benchmark", "pair"), [(transfer, MOBILENET), (transfer_digits, RESNET20)])
def test_smoke_record_is_paired_and_has_both_comparisons(
    benchmark: Any, pair: Pair, data_dir: Path, tmp_path: Path
) -> None:
    config = benchmark.PRESETS["smoke"]
    steps = config.images // config.batch  # of full fine-tuning in its one epoch
    made = load(harness.run(benchmark.BENCHMARK, "smoke", tmp_path, data_dir=data_dir).path)
    costs = made.results(cost_key(pair))[0]
    for variant in pair.variants:
        for method in pair.methods(variant):
            (result,) = made.results(key(pair, variant, method)).values()
            assert result["epoch"] == [1.0]
            assert result["accuracy by epoch"][-1] == result["accuracy"]
            assert result["accuracy by time"][-1] == result[SECONDS]
            assert result["seconds"][-1] <= steps * costs[FULL] * 1.5
