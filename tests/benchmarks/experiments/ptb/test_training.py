"""The language model of the Penn Treebank benchmark and its training loop."""

import math

import pytest
import torch
from torch.nn import functional as F

import mrreg
from benchmarks.core.comparison import Job
from benchmarks.core.records import ROOT, load, path_of
from benchmarks.core.training import Curve, Loop, Plan, fit, mean_loss
from benchmarks.experiments.ptb import experiment
from benchmarks.experiments.ptb.data import Text
from benchmarks.experiments.ptb.experiment import PtbConfig, batches, in_rows
from benchmarks.experiments.ptb.model import LENGTH, LR, LanguageModel, Method, network, sinusoids

WORDS, WIDTH = 12, 8
METHODS = [
    Method(),
    Method("dropout", 0.3),
    Method("masks", 0.3, k=3),
    Method("masks", 0.3, k=3, boost=2.0, momentum=0.0),
    Method("unit masks", 0.3, k=3),
    Method("thin", None, k=3),
]


CPU = torch.device("cpu")


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> Text:
    train, valid, test = (torch.randint(WORDS, (n,)) for n in (300, 200, 150))
    text = Text(train, valid, test, WORDS)
    monkeypatch.setattr(experiment, "penn_treebank", lambda *_: text)
    return text


def begin(method: Method, seed: int = 0) -> Loop:
    config = PtbConfig(1, 2, (), batch=3, tokens=300, width=WIDTH)
    return experiment.build(config, method, seed, Job("compare", 6, None, CPU, None, ""))


def train(method: Method, epochs: int, seed: int = 0) -> Curve:
    at = range(3, 3 * epochs + 1, 3)
    return fit(begin(method, seed), Plan(at, ("validation", "test")), CPU)


def test_the_model_is_the_tutorials() -> None:
    model = LanguageModel(10_000)
    encoder = 2 * (4 * (200 * 200 + 200) + 2 * (200 * 200 + 200) + 4 * 200)
    assert sum(p.numel() for p in model.parameters()) == 2 * 10_000 * 200 + 10_000 + encoder
    assert model.embedding.weight.abs().max() <= 0.1
    assert all(layer.self_attn.num_heads == 2 and not layer.norm_first for layer in model.encoder.layers)


def test_no_word_sees_the_following_ones() -> None:
    model = LanguageModel(WORDS, WIDTH).eval()
    words = torch.randint(WORDS, (1, LENGTH))
    other = words.clone()
    other[0, 20:] = (other[0, 20:] + 1) % WORDS
    one, two = model(words), model(other)
    torch.testing.assert_close(one[:, :20], two[:, :20])
    assert not torch.allclose(one[:, 20], two[:, 20])


def test_embedding_is_scaled_before_positions_are_added() -> None:
    model = LanguageModel(WORDS, WIDTH).eval()
    seen: list[torch.Tensor] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    words = torch.randint(WORDS, (2, 5))
    model(words)
    expected = F.embedding(words, model.embedding.weight) * math.sqrt(WIDTH) + sinusoids(5, WIDTH)
    torch.testing.assert_close(seen[0], expected)


def test_batches_predict_the_next_word_of_every_row() -> None:
    rows = in_rows(torch.arange(2 * 80 + 1), 2)
    assert rows[:, 0].tolist() == [0, 80]
    pairs = list(batches(rows))
    assert [x.shape[1] for x, _ in pairs] == [35, 35, 9]
    assert all(torch.equal(y, x + 1) for x, y in pairs)
    assert torch.equal(torch.cat([x for x, _ in pairs], 1), rows[:, :-1])


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.kind}, momentum {m.momentum}")
def test_training_is_the_plain_loop(method: Method, text: Text) -> None:
    curve = train(method, epochs=2, seed=5)
    torch.manual_seed(5)
    model = network(method, WORDS, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=method.momentum)
    if "masks" in method.kind or method.kind == "thin":
        mrreg.attach(optimizer, model, seed=5)
    torch.manual_seed(5)
    losses = []
    for _ in range(2):
        model.train()
        for start in range(0, 99, 35):
            stop = min(start + 35, 99)
            words = torch.stack([text.train[row * 100 + start : row * 100 + stop + 1] for row in range(3)])
            optimizer.zero_grad()
            F.cross_entropy(model(words[:, :-1]).reshape(-1, WORDS), words[:, 1:].reshape(-1)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        losses.append(mean_loss(model, batches(in_rows(text.valid, 50))))
    assert list(curve.values["validation"].values()) == losses
    assert all(list(found) == [3, 6] for found in curve.values.values())


def test_an_epoch_has_as_many_steps_as_the_comparison_counts() -> None:
    for config in (PtbConfig(1, 2, (0.1,), batch=3, tokens=300), *experiment.PRESETS.values()):
        rows = in_rows(torch.zeros(config.tokens or 929_589), config.batch)
        (first, *_) = experiment.comparisons(config)
        assert first.budgets[:2] == (len(batches(rows)), 2 * len(batches(rows)))
        assert first.patience == config.patience


def test_without_trials_methods_have_the_p_of_a_tenth_of_the_text() -> None:
    (only,) = experiment.comparisons(experiment.PRESETS["whole"])
    found = load(path_of(ROOT / "benchmarks" / "results", "ptb", "cpu"))
    assert [only.methods[name].p for name in ("SGD", "dropout", "masks", "thin, defaults")] == [
        *(found.numbers(name, "p")[0] for name in ("SGD", "dropout", "masks")),
        None,
    ]
    assert [each.method for each in experiment.STUDY.runs(experiment.PRESETS["whole"])] == [*only.methods]
