"""The classifier's parts, and one training loop for every method."""

import itertools

import pytest
import torch
from torch import nn

import mrreg
from benchmarks.core.errors import UserError
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.data import Texts
from benchmarks.experiments.text.encoder import Classifier
from benchmarks.experiments.text.training import Trainee, accuracy, costs, one_step, train


@pytest.fixture
def net() -> Classifier:
    return text_model.encoder("tiny", 2, 0)


def texts(count: int = 12) -> Texts:
    length = torch.arange(count) % 4 + 1
    y = torch.arange(count) % 2
    ids = torch.where(torch.arange(4) < length[:, None], 3 + y[:, None], 0)
    return Texts(ids, length, y)


def batch(data: Texts) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return data.batch(torch.arange(len(data)))


def test_parts_grow_from_the_head_to_everything(net: Classifier) -> None:
    counts = [len(net.parameters_of(name)) for name in ("head", "last 1", "half", "last 2", "layers", "all")]
    assert counts == [2, 18, 18, 34, 34, len(list(net.parameters()))]
    assert {id(p) for p in net.parameters_of("all")} == {id(p) for p in net.parameters()}


def test_no_parameter_has_two_names(net: Classifier) -> None:
    assert len(list(net.parameters())) == len(list(net.named_parameters(remove_duplicate=False)))


def test_padding_does_not_change_the_logits(net: Classifier) -> None:
    net.eval()
    short = net(torch.tensor([[3, 4]]), torch.ones(1, 2, dtype=torch.bool))
    padded = net(torch.tensor([[3, 4, 0, 0]]), torch.tensor([[True, True, False, False]]))
    torch.testing.assert_close(short, padded)


def test_the_head_follows_from_the_seed() -> None:
    one, same, other = (text_model.encoder("tiny", 2, seed).fc.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_an_unknown_encoder_is_refused() -> None:
    with pytest.raises(UserError, match="encoder must be one of minilm, distilbert, got 'bert'"):
        text_model.tokenizer("bert")


def test_training_learns_and_is_watched_where_asked(net: Classifier) -> None:
    data = texts()
    trainee = Trainee(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    seen: list[int] = []
    seconds = train(trainee, itertools.repeat(batch(data)), 20, seen.append, at=(1, 7, 20))
    assert seen == [1, 7, 20]
    assert seconds > 0
    assert accuracy(net, data) == 100


def test_accuracy_counts_the_right_ones() -> None:
    class Says(nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[1.0, 0.0]]).expand(len(ids), 2)

    assert accuracy(Says(), texts(200)) == 50


def test_after_is_called_once_a_step(net: Classifier) -> None:
    calls: list[int] = []
    trainee = Trainee(net, torch.optim.SGD(net.fc.parameters(), lr=0.1), lambda: calls.append(1))
    train(trainee, itertools.repeat(batch(texts())), 3)
    assert len(calls) == 3


def test_costs_are_of_whole_cycles_and_tell_cheap_steps_from_dear_ones() -> None:
    def trainee(k: int) -> Trainee:
        net = text_model.encoder("tiny", 2, 0)
        return Trainee(net, mrreg.MultirateSGD(net.parameters(), lr=0.1, k=k, fast=net.fc))

    wide = batch(Texts(torch.full((64, 32), 3), torch.full((64,), 32), torch.arange(64) % 2))
    makers = {"full": lambda: trainee(1), "k = 5": lambda: trainee(5)}
    found = costs(makers, dict.fromkeys(makers, [wide] * 5), rounds=3)
    assert 0 < found["k = 5"] < found["full"]


def test_a_step_is_timed_by_the_process_on_cpu(net: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter((2.0, 5.0))
    monkeypatch.setattr("benchmarks.experiments.text.training.time.process_time", lambda: next(ticks))
    assert one_step(Trainee(net, torch.optim.SGD(net.parameters(), lr=0.1)), batch(texts())) == 3.0
