"""The studies of thin networks: as many trials for everyone, the loss of a budget, and whole smoke runs."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.core import records, runner
from benchmarks.core.comparison import Job
from benchmarks.experiments.thin import boost, chars, kinds, mnist, mnist_more, words
from benchmarks.experiments.thin.decoder import Decoder


@pytest.mark.parametrize("preset", ["smoke", "cpu", "gpu"])
def test_every_method_that_is_tuned_has_as_many_trials(preset: str) -> None:
    for comparison in [*mnist.comparisons(mnist.PRESETS[preset]), *mnist.comparisons(mnist_more.PRESETS[preset])]:
        assert comparison.search
        assert comparison.search.grid.keys() == comparison.methods.keys() - {"none"}
        assert len({len(grid) for grid in comparison.search.grid.values()}) == 1
    assert len({len(grid) for grid in chars.GRID.values()}) == 1


def test_options_are_said_in_words() -> None:
    assert mnist.said({"p": (0.2, 0.5)}) == "p = 0.2/0.5"
    assert mnist.said({"weight_decay": 1e-3}) == "weight_decay = 0.001"


@pytest.mark.parametrize(("study", "methods"), [(mnist, mnist.ALONE), (mnist_more, mnist_more.TOGETHER)])
def test_mnist_studies_run(study: Any, methods: tuple[str, ...], tmp_path: Path) -> None:
    outcome = runner.run(study.BENCHMARK, "smoke", tmp_path)
    record = records.load(outcome.path)
    assert outcome.finished == outcome.total
    for name in methods:
        assert len(record.numbers(f"100: {name}", "accuracy at equal seconds")) == 2
    assert {run["seeds"][0] >= 1000 for key, run in record.runs.items() if "search" in key} == {True}


def test_loss_of_a_budget_is_that_at_the_smallest_validation_loss_so_far() -> None:
    assert chars.best([3.0, 2.0, 2.5, 1.0], [3.1, 2.1, 1.9, 1.5]) == [3.1, 2.1, 2.1, 1.5]


def test_text_is_read_by_characters_with_one_alphabet(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    for part, text in (("train", "abcab"), ("valid", "ccab"), ("test", "d a")):
        (tmp_path / "ptb" / f"ptb.{part}.txt").write_text(text)
    train, valid, test, count = chars.texts(tmp_path, 4, 3)
    assert (train.tolist(), valid.tolist(), test.tolist(), count) == ([1, 2, 3, 1], [3, 3, 1], [4, 0, 1], 5)


def test_rows_predict_the_next_character_and_waste_none() -> None:
    ((x, y),) = chars.rows(torch.arange(2 * chars.LENGTH + 1))
    assert x.shape == y.shape == (2, chars.LENGTH)
    assert torch.equal(y, x + 1)
    assert y.max() == 2 * chars.LENGTH


def test_decoder_sees_no_later_character() -> None:
    torch.manual_seed(0)
    model = Decoder(7, 12, 3, 2, length=8).eval()
    x = torch.randint(7, (1, 8))
    other = x.clone()
    other[0, 5:] = (x[0, 5:] + 1) % 7
    torch.testing.assert_close(model(x)[:, :5], model(other)[:, :5])
    assert not torch.allclose(model(x)[:, 5:], model(other)[:, 5:])


@pytest.mark.parametrize("method", chars.METHODS)
def test_trainings_of_the_decoder_differ_in_what_is_left_out_alone(method: str, tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"ptb.{part}.txt").write_text("abcdefgh " * 300)
    job = Job("compare", 4, None, torch.device("cpu"), tmp_path, method)
    loops = [chars.build(chars.PRESETS["smoke"], each, 1, job) for each in (chars.METHODS[method], chars.Method())]
    assert loops[0].evaluate("test") == pytest.approx(loops[1].evaluate("test"), abs=1e-6)
    for loop in loops:
        loop.step()
    assert loops[0].evaluate("test") < 10


def test_rare_words_are_one_word(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    for part, text in (("train", "b a b c a b <unk> <unk> <unk> <unk>"), ("valid", "a d"), ("test", "c b")):
        (tmp_path / "ptb" / f"ptb.{part}.txt").write_text(text)
    train, valid, test, count = words.texts(tmp_path, 6, 2, 3)
    assert (train.tolist(), valid.tolist(), test.tolist(), count) == ([1, 2, 1, 0, 2, 1], [2, 0], [0, 1], 3)


@pytest.mark.parametrize("setting", [boost.SETTINGS[4], boost.SETTINGS[-1]])
def test_short_trainings_have_their_learning_rate_momentum_and_boost(setting: boost.Setting, tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"ptb.{part}.txt").write_text("abcdefgh " * 300)
    config = boost.PRESETS["smoke"]
    loop = boost.build(config, boost.Method(5, 2.5), 1, Job("compare", 4, setting, torch.device("cpu"), tmp_path, ""))
    warm = 1 if setting.network == "MLP" else 1 / chars.WARM
    loop.step()
    group = loop.optimizer.param_groups[0]
    assert group["lr"] == pytest.approx(setting.lr * warm)
    assert group.get("momentum", 0.0) == setting.momentum
    assert loop.evaluate("test") > 0.1  # a loss, not per cent


@pytest.mark.parametrize(("loss", "diverged"), [(2.0, False), (2.4, True), (float("nan"), True), (float("inf"), True)])
def test_a_loss_above_guessing_is_a_diverged_training(loss: float, diverged: bool) -> None:
    assert math.isnan(boost.judged(loss, 10)) == diverged


def test_kinds_of_units_are_left_out_alone_and_together() -> None:
    lost = {}
    for name in ("thin, k = 5", "hidden units alone", "heads alone"):
        method = kinds.METHODS[name]
        lost[name] = {group.kind for group in chars.plan((9, 12, 6, 1, chars.LENGTH), method.p, method.heads).groups}
    assert lost == {"thin, k = 5": {"hidden", "heads"}, "hidden units alone": {"hidden"}, "heads alone": {"heads"}}
