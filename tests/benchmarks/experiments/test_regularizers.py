"""Studies of thin training: all methods of a task begin with one network, and differ in what they leave out alone."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mrreg
from benchmarks.core.comparison import Job
from benchmarks.data import graphs
from benchmarks.data.images import Images
from benchmarks.experiments.regularizers import (
    ENDING,
    FEW,
    LIKE,
    METHODS,
    NONE,
    Method,
    Regularizers,
    draw_once,
    turn_off,
    warming,
)
from benchmarks.experiments.text import thin as text
from benchmarks.experiments.thin import chars, convolutions, draws, graph, held, mnist, tabular, vit
from benchmarks.experiments.thin.decoder import Decoder
from mrreg.masks.mask import find_mask

STUDIES: dict[str, Regularizers[Any]] = {
    "mnist": mnist.STUDY, "characters": chars.STUDY, "words": chars.WORDS, "vit": vit.STUDY,
    "convolutions": convolutions.STUDY, "table": tabular.STUDY, "housing": tabular.HOUSES, "graph": graph.STUDY,
}  # fmt: skip


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Few images, drawn at random, in the place of CIFAR-10, a short text, and a ring of nodes."""
    generator = torch.Generator().manual_seed(0)
    x, test_x = (torch.rand(count, 3, draws.SIZE, draws.SIZE, generator=generator) for count in (160, 50))
    y, test_y = (torch.arange(count) % draws.CLASSES for count in (160, 50))
    monkeypatch.setattr(draws, "pixels", lambda *_: Images(x, y, test_x, test_y))
    (tmp_path / "ptb").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"ptb.{part}.txt").write_text("a b c d e f g h " * 300)
    (tmp_path / "graphs").mkdir()
    nodes = np.arange(30)
    splits: dict[str, Any] = dict(zip(("train", "valid", "test"), np.split(nodes, (10, 20)), strict=True))
    edges = np.stack([nodes, np.roll(nodes, 1)], 1)
    words: dict[str, Any] = {"indptr": np.arange(31) * 2, "indices": np.arange(60) % 12}
    np.savez(tmp_path / "graphs" / "cora.npz", edges=edges, labels=nodes % 3, **words, **splits)
    return tmp_path


def trainings(study: Regularizers[Any], data: Path) -> list[tuple[str, Any]]:
    """The trainings of the small preset with each method, its first options chosen."""
    job = Job("compare", 4, None, torch.device("cpu"), data, "")
    grid = study.grid()
    return [
        (name, study.build(study.presets["smoke"], replace(METHODS[name], **grid[LIKE.get(name, name)][0]), 1, job))
        for name in (*grid, *study.like)
    ]


@pytest.mark.parametrize("name", STUDIES)
def test_with_more_data_few_methods_are_tried_timed_compared_and_shown(name: str) -> None:
    config = STUDIES[name].presets["cpu"]
    study = STUDIES[name].with_more("more", config, "")
    runs = {run.method for run in study.benchmark().runs(config)}
    assert {name for name in runs if not name.startswith(("search", "costs"))} == set(FEW)
    assert len([name for name in runs if name.startswith("search")]) == 4 * len(FEW)
    timed = [comparison.costs for comparison in study.comparisons(config)]
    assert [costs and costs.baseline for costs in timed] == [NONE, NONE]
    (shown,) = [each for each in study.benchmark().shown if "cpu" in (each.presets or ())]
    assert set(shown.methods) == set(FEW) >= {name for pair in shown.better for name in pair}


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


@pytest.mark.parametrize(
    ("method", "given"),
    [
        (Method("thin", None), [None, None]),
        (Method("thin", (("hidden", 0.5),), k=4, boost=2.0), [{"hidden": 0.5}, 2.0]),
    ],
)
def test_thin_training_is_called_as_users_call_it(
    method: Method, given: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    thin = mrreg.thin

    def noted(*arguments: Any, **options: Any) -> Any:
        calls.append(options.get("boost") if "plan" in options else arguments[1])
        return thin(*arguments, **options)

    monkeypatch.setattr(mrreg, "thin", noted)
    monkeypatch.setattr("benchmarks.experiments.regularizers._GROUPS", {})
    mnist.STUDY.build(mnist.PRESETS["smoke"], method, 0, Job("compare", 4, None, torch.device("cpu"), None, ""))
    assert calls == given


def test_masks_are_taken_out_for_the_last_tenth_and_a_resumed_training_agrees() -> None:
    config = replace(mnist.PRESETS["smoke"], steps=20)

    def begun(steps: int) -> Any:
        job = Job("compare", 20, None, torch.device("cpu"), None, "")
        loop = mnist.STUDY.build(config, replace(METHODS[ENDING], p=(("hidden", 0.5),), lr=1e-2), 0, job)
        for _ in range(steps):
            loop.step()
        return loop

    masked, whole, resumed = begun(18), begun(19), begun(0)
    assert [any(map(find_mask, loop.model.modules())) for loop in (masked, whole)] == [True, False]
    resumed.load_state_dict(whole.state_dict())
    for loop in (whole, resumed):
        loop.step()
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_dropout_that_draws_once_takes_the_same_features_from_all_examples() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout2d(0.5)))
    draw_once(model)
    x = torch.ones(8, 40, 5, 20)
    for layer, kept in zip([m for m in model.modules() if not isinstance(m, nn.Sequential)], (3, 1), strict=True):
        y = layer(x)
        first = y.movedim(kept, 0).flatten(1)
        assert torch.equal(first, first[:, :1].expand_as(first))
        assert sorted(set(y.flatten().tolist())) == [0.0, 2.0]
        assert torch.equal(layer.eval()(x), x)


def test_dropout_that_is_off_changes_nothing() -> None:
    model = nn.Sequential(
        nn.Dropout(0.5), nn.TransformerEncoderLayer(8, 2, 16, 0.5), nn.Unflatten(2, (2, 4)), nn.Dropout2d(0.5)
    )
    x = torch.rand(3, 4, 8)
    assert not torch.equal(model(x), model(x))
    turn_off(model)
    assert torch.equal(model(x), model(x))


def test_images_are_drawn_from_those_that_do_not_validate() -> None:
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


def test_learning_rates_rise_to_what_they_were_and_stay() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.5)
    before, rates = warming(optimizer, 4), []
    for step in range(6):
        before(step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]


def test_a_graph_is_averaged_over_neighbours(data: Path) -> None:
    found = graphs.load("cora", data)
    model = graph.GCN(found, 4, (0.0, 0.0))
    dense = torch.zeros(30, 30)
    dense[found.edges[0], found.edges[1]] = found.weights
    torch.testing.assert_close(dense.sum(1), torch.ones(30))  # of a ring, with each node's own edge
    expected = dense @ model.second((dense @ model.first(found.words)).relu())
    torch.testing.assert_close(model(found.words, torch.arange(30)), expected)


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
    job = Job("compare", 4, None, torch.device("cpu"), None, "")
    for method in (Method(), Method("dropout", 0.1), Method("thin", None)):
        net = text.network(text.Config(1, 4, 16, encoder="tiny"), method, job)
        found = {m.p for m in net.modules() if isinstance(m, nn.Dropout)}
        assert found == {0.1 if method.kind == "dropout" else 0.0}


def test_momentum_of_absent_units_is_held_or_decays_or_begins_anew() -> None:
    """After the joint step of a cycle, AdamW's moments change only for units that are present."""
    found = {}
    for name in (held.JOINT, held.DECAYS, held.RESET):
        config, job = held.Config(2, (), "smoke"), Job("compare", 4, "digits", torch.device("cpu"), None, name)
        loop: Any = held.build(config, replace(held.METHODS[name], optimizer="AdamW", lr=1e-3), 0, job)
        for _ in range(5):
            loop.step()
        before = loop.optimizer.state[loop.model[0].weight]["exp_avg"].clone()
        loop.step()
        found[name] = before, loop.optimizer.state[loop.model[0].weight]["exp_avg"]
    before, after = found[held.JOINT]
    absent = (before == after).all(1)
    assert absent.sum() == 4
    torch.testing.assert_close(found[held.DECAYS][1][absent], 0.9 * before[absent])
    assert not found[held.RESET][1][absent].any()
    torch.testing.assert_close(found[held.DECAYS][1][~absent], after[~absent])
