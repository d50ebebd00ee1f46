"""Studies of thin training: all methods of a task begin with one network, and differ in what they leave out alone."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import mrreg
from benchmarks.core.comparison import Job
from benchmarks.core.runner import Benchmark
from benchmarks.experiments.regularizers import METHODS, NONE, Method
from benchmarks.experiments.text import thin as text
from benchmarks.experiments.thin import chars, convolutions, draws, mnist, tabular, vit
from benchmarks.experiments.thin.decoder import Decoder

STUDIES: dict[str, Benchmark[Any]] = {
    "mnist": mnist.BENCHMARK, "more": mnist.BENCHMARK_MORE, "chars": chars.BENCHMARK, "words": chars.BENCHMARK_WORDS,
    "vit": vit.BENCHMARK, "convolutions": convolutions.BENCHMARK, "tabular": tabular.BENCHMARK,
}  # fmt: skip


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Few images, drawn at random, in the place of CIFAR-10, and a short text."""
    generator = torch.Generator().manual_seed(0)
    x, test_x = (torch.rand(count, 3, draws.SIZE, draws.SIZE, generator=generator) for count in (160, 50))
    y, test_y = (torch.arange(count) % draws.CLASSES for count in (160, 50))
    monkeypatch.setattr(draws, "pixels", lambda *_: (x, y, test_x, test_y))
    (tmp_path / "ptb").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"ptb.{part}.txt").write_text("a b c d e f g h " * 300)
    return tmp_path


def trainings(study: Benchmark[Any], data: Path) -> list[tuple[str, Any]]:
    """The trainings of the small preset with each method of its first setting, its first options chosen."""
    comparison = study.runs.__self__.comparisons(study.presets["smoke"])[0]  # type: ignore[attr-defined]
    found = []
    for name, method in comparison.methods.items():
        grid = comparison.search.grid.get(comparison.search.like.get(name, name)) if comparison.search else None
        job = Job("compare", 4, comparison.setting, torch.device("cpu"), data, name)
        built = study.runs.__self__.build(study.presets["smoke"], replace(method, **(grid or [{}])[0]), 1, job)  # type: ignore[attr-defined]
        found.append((name, built))
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_every_method_begins_with_the_same_network_and_learns(name: str, data: Path) -> None:
    loops = trainings(STUDIES[name], data)
    first = loops[0][1]
    *inputs, _ = next(first.batches)
    plain = first.model.eval()(*inputs)
    for method, loop in loops:
        torch.testing.assert_close(loop.model.eval()(*inputs), plain, msg=method)
        before = [p.detach().clone() for p in loop.model.parameters()]
        loop.step()
        assert any(not torch.equal(p, old) for p, old in zip(loop.model.parameters(), before, strict=True)), method


@pytest.mark.parametrize("name", STUDIES)
def test_every_method_that_is_tuned_has_as_many_trials(name: str) -> None:
    for config in STUDIES[name].presets.values():
        for comparison in STUDIES[name].runs.__self__.comparisons(config):  # type: ignore[attr-defined]
            assert comparison.search
            grid, like = comparison.search.grid, comparison.search.like
            assert len({len(tried) for tried in grid.values()}) == 1
            assert grid.keys() | like.keys() == comparison.methods.keys() - {NONE}


def test_a_boost_that_is_not_given_is_k(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    """With which all records were made, whatever the library's own default is."""
    given: list[Any] = []
    thin = mrreg.thin

    def noted(*arguments: Any, **options: Any) -> Any:
        given.append(options.get("boost"))
        return thin(*arguments, **options)

    monkeypatch.setattr(mrreg, "thin", noted)
    study = mnist.STUDY
    for method in (Method("thin", (0.2, 0.5), k=4), Method("thin", (0.2, 0.5), k=4, boost=1.0)):
        study.build(study.presets["smoke"], method, 0, Job("compare", 4, 100, torch.device("cpu"), None, ""))
    assert [boost for boost in given if boost] == [4, 1.0]


def test_images_are_drawn_from_those_that_do_not_validate_and_the_rate_falls_to_nothing() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * draws.SIZE**2, draws.CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    job = Job("compare", 20, None, torch.device("cpu"), None, "")
    loop = draws.images(draws.Draw(100, 160, 50, 50, 20), model, optimizer, 3, job)
    held = {tuple(x.flatten()[:9].tolist()) for part, _ in loop.splits["validation"]() for x in part}
    drawn = [
        tuple(x.flatten()[:9].tolist()) for _, (part, _) in zip(range(5), loop.batches, strict=False) for x in part
    ]
    assert (len(set(drawn)), len(held)) == (100, 50)
    assert not held & set(drawn)
    rates = []
    for _ in range(20):
        loop.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:2] == [0.25, 0.5]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_a_share_of_the_labels_is_wrong_and_always_the_same() -> None:
    y = torch.arange(1000) % 10
    wrong = mnist.mislabelled(y, 0.2)
    assert 150 < (wrong != y).sum() < 250
    assert torch.equal(wrong, mnist.mislabelled(y, 0.2))
    assert torch.equal(mnist.mislabelled(y, 0.0), y)


def write(folder: Path, train: str, valid: str, test: str) -> Path:
    (folder / "own" / "ptb").mkdir(parents=True)
    for part, words in (("train", train), ("valid", valid), ("test", test)):
        (folder / "own" / "ptb" / f"ptb.{part}.txt").write_text(words)
    return folder / "own"


def test_text_is_read_by_characters_with_one_alphabet(tmp_path: Path) -> None:
    parts, count = chars.texts(write(tmp_path, "abcab", "ccab", "d a"), 4, 3, None)
    assert ([part.tolist() for part in parts], count) == ([[1, 2, 3, 1], [3, 3, 1], [4, 0, 1]], 5)


def test_rare_words_are_one_word(tmp_path: Path) -> None:
    folder = write(tmp_path, "b a b c a b <unk> <unk> <unk> <unk>", "a d", "c b")
    parts, count = chars.texts(folder, 6, 2, 3)
    assert ([part.tolist() for part in parts], count) == ([[1, 2, 1, 0, 2, 1], [2, 0], [0, 1]], 3)


def test_rows_predict_the_next_character_and_waste_none() -> None:
    ((x, y),) = chars.rows(torch.arange(2 * chars.LENGTH + 1))
    assert x.shape == y.shape == (2, chars.LENGTH)
    assert torch.equal(y, x + 1)
    assert y.max() == 2 * chars.LENGTH


def test_decoder_sees_no_later_character() -> None:
    model = Decoder(7, 12, 3, 2, length=8).eval()
    x = torch.randint(7, (1, 8))
    other = x.clone()
    other[0, 5:] = (x[0, 5:] + 1) % 7
    torch.testing.assert_close(model(x)[:, :5], model(other)[:, :5])
    assert not torch.allclose(model(x)[:, 5:], model(other)[:, 5:])


def test_an_encoder_has_its_own_dropout_everywhere_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.experiments.text.data.load", lambda *_: SimpleNamespace(classes=2))
    config = text.Config(1, 4, (("SST-2", 16),), encoder="tiny")
    job = Job("compare", 4, ("SST-2", 16), torch.device("cpu"), None, "")
    for method in text.METHODS.values():
        found = {m.p for m in text.network(config, method, job).modules() if isinstance(m, nn.Dropout)}
        assert found == {method.p if method.kind == "dropout" else 0.0}


def test_all_methods_have_names_of_their_own() -> None:
    assert (
        len({repr(method) for name, method in METHODS.items() if name not in (NONE, "weight decay")})
        == len(METHODS) - 2
    )
