"""The classifier's parts, and one training loop for every method."""

import pytest
import torch

from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.data import Texts
from benchmarks.experiments.text.encoder import Classifier
from benchmarks.experiments.text.recipes import by_length


@pytest.fixture
def net() -> Classifier:
    return text_model.encoder("tiny", 2)


def test_parts_grow_from_the_head_to_everything(net: Classifier) -> None:
    counts = [len(net.parameters_of(name)) for name in ("head", "last 1", "half", "last 2", "layers", "all")]
    assert counts == [2, 18, 18, 34, 34, len(list(net.parameters()))]
    assert {id(p) for p in net.parameters_of("all")} == {id(p) for p in net.parameters()}


def test_padding_does_not_change_the_logits(net: Classifier) -> None:
    net.eval()
    short = net(torch.tensor([[3, 4]]), torch.ones(1, 2, dtype=torch.bool))
    padded = net(torch.tensor([[3, 4, 0, 0]]), torch.tensor([[True, True, False, False]]))
    torch.testing.assert_close(short, padded)


def test_texts_are_evaluated_by_length_each_once() -> None:
    length = torch.arange(200) % 4 + 1
    ids = torch.where(torch.arange(4) < length[:, None], 3, 0)
    drawn = list(by_length(Texts(ids, length, length % 2)))
    lengths = [int(n) for _, mask, _ in drawn for n in mask.sum(1)]
    assert lengths == sorted(length.tolist())
    assert all(mask.shape[1] == int(mask.sum(1).max()) for _, mask, _ in drawn)
