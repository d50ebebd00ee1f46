"""The Penn Treebank benchmark as data: runs, the choice of p, what the report is told."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.core import runner as harness
from benchmarks.core.records import Record, load, new
from benchmarks.experiments.ptb import experiment as ptb
from benchmarks.experiments.ptb.experiment import (
    COMPARED,
    H_S,
    MINIMUM,
    SECTIONS,
    TABLES,
    WITHOUT_MOMENTUM,
    facts,
    search,
)
from benchmarks.report import pages as report
from benchmarks.report.paper import ITEMS

CURVE = "validation loss per epoch"


def trial(name: str, p: float) -> str:
    return search((p,), name).trial(name, {"p": p})


def record(losses: dict[str, float], preset: str = "cpu") -> Record:
    """A record in which each method has one result."""
    made = new("ptb", preset, ptb.PRESETS[preset], torch.device("cpu"))
    for method, loss in losses.items():
        result = {MINIMUM: loss, "epoch of the minimum": 2, "test loss at the minimum": loss, CURVE: [loss + 1, loss]}
        made.add(method, method, (0,), 1.0, [result])
    return made


@pytest.mark.parametrize("preset", ptb.PRESETS)
def test_runs_are_distinct_and_the_search_comes_before_what_needs_it(preset: str) -> None:
    config = ptb.PRESETS[preset]
    runs = ptb.STUDY.runs(config)
    keys = [run.key for run in runs]
    assert len(set(keys)) == len(keys)
    for name in ("dropout", "masks", "unit masks"):
        trials = [keys.index(f"{trial(name, p)} | seed {1000}") for p in config.p]
        assert max(trials) < keys.index(f"{name} | seed 0")
    wanted = [*COMPARED, *TABLES, *(WITHOUT_MOMENTUM if preset == "paper" else ())]
    assert "SGD, momentum 0 | seed 0" in keys
    assert {f"{name} | seed {seed}" for name in wanted for seed in range(config.seeds)} <= set(keys)


def test_paper_preset_is_the_papers_setting() -> None:
    config = ptb.PRESETS["paper"]
    assert (config.seeds, config.batch, config.tokens, config.words, config.width) == (10, 128, None, None, 200)
    assert {name: method.boost for name, method in H_S.items()} == {
        "masks, h_S = 0.2": 2, "masks, h_S = 0.3": 3, "masks, h_S = 0.8": 8
    }  # fmt: skip


def test_p_with_the_lowest_validation_loss_is_chosen_and_the_tables_share_it() -> None:
    p = ptb.PRESETS["cpu"].p
    made = record({trial("masks", each): loss for each, loss in zip(p, (4.2, 4.1, 4.3), strict=True)})
    tables = ptb.comparisons(ptb.PRESETS["cpu"])[2]
    assert tables.search
    assert "masks, h_S = 0.3" in tables.methods
    assert tables.search.chosen(made, "masks, h_S = 0.3") == {"p": p[1]}
    assert tables.search.chosen(made, "SGD") == {}


def test_every_row_claim_and_plot_names_a_method_that_is_run() -> None:
    for section in SECTIONS:
        preset = next(iter(section.presets or {"cpu"}))
        config = ptb.PRESETS[preset]
        known = {run.method: 4.0 for run in ptb.STUDY.runs(replace(config, seeds=1))}
        probe = record(known, preset)
        assert all(row.values(probe) == [4.0] for row in section.rows)
        assert all(claim.values(probe) == [0.0] for claim in section.claims)
        for plot in section.plots:
            assert set(getattr(plot, "methods", {}).values()) <= known.keys()


def test_a_lower_loss_speaks_for_the_masks() -> None:
    (figure,) = (s for s in SECTIONS if s.item == "Figure 9" and "cpu" in (s.presets or ()))
    made = record({"SGD": 4.5, "masks": 4.25, "dropout": 4.0})
    assert [claim.values(made) for claim in figure.claims] == [[0.25], [-0.25]]


def test_facts_say_what_the_search_chose_and_whether_sgd_has_passed_its_minimum() -> None:
    p = ptb.PRESETS["cpu"].p
    made = record({trial("dropout", p[0]): 4.2, trial("dropout", p[1]): 4.1, "SGD, momentum 0": 4.6})
    said = " ".join(facts(made))
    assert f"dropout: p = {p[0]:g}: 4.200; p = {p[1]:g}: 4.100 (chosen)." in said
    assert "SGD, momentum 0, seed 0: minimum 4.600 after 2 of 2 epochs, still falling." in said


def test_a_record_without_runs_has_a_report() -> None:
    chapters = report.chapters([(record({}), SECTIONS)], ITEMS)
    blocks = [block for chapter in chapters for block in chapter.blocks if not block.missing]
    assert [block.verdict for block in blocks] == ["not run"] * 5


@pytest.mark.data
def test_smoke_record_is_complete_and_paired_by_seed(data_dir: Path, tmp_path: Path) -> None:
    made = load(harness.run(ptb.BENCHMARK, "smoke", tmp_path, data_dir=data_dir).path)
    assert len(made.runs) == made.total
    for name in (*COMPARED, *TABLES):
        assert sorted(made.numbers(name, MINIMUM)) == [0, 1]
        for seed, curve in made.curves(name, CURVE).items():
            assert made.numbers(name, MINIMUM)[seed] == min(curve)
