"""The demo is fair: splits do not overlap, every method gets the same search, and a run repeats exactly."""

import pytest
import torch
from torch import nn

from benchmarks.core import records
from benchmarks.experiments import demo
from mrreg import MultirateMask

SMOKE = demo.PRESETS["smoke"]


@pytest.mark.parametrize("seed", [0, 1, 1000])
def test_no_image_is_in_two_splits(seed: int) -> None:
    parts = demo.split(seed, 100)
    assert [len(part) for part in parts] == [100, 797, 900]
    assert len(set(torch.cat(parts).tolist())) == 1797


def test_test_images_are_the_same_for_all_and_training_images_are_not() -> None:
    (train, _, test), (other_train, _, other_test) = demo.split(0, 100), demo.split(1, 100)
    assert torch.equal(test, other_test)
    assert not torch.equal(train, other_train)


def test_the_digits_are_whole() -> None:
    x, y = demo.digits()
    assert x.shape == (1797, 64)
    assert (x.min().item(), x.max().item()) == (0, 1)
    assert set(y.tolist()) == set(range(10))


def test_every_method_has_as_many_candidates_with_the_same_step_sizes() -> None:
    steps = {method: sorted(choice.lr for choice in choices) for method, choices in demo.CHOICES.items()}
    assert len({tuple(each) for each in steps.values()}) == 1
    assert all(len(set(choices)) == len(choices) for choices in demo.CHOICES.values())


def test_every_method_begins_with_the_same_weights() -> None:
    weights = {}
    for method in demo.CHOICES:
        torch.manual_seed(3)
        model = demo.network(method, demo.Choice(0.1, p=0.5, k=5), 16)
        weights[method] = [parameter.detach() for parameter in model.parameters()]
    for each in weights.values():
        torch.testing.assert_close(each, weights["SGD"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("method", "kind", "count"),
    [("SGD", nn.Dropout, 0), ("dropout", nn.Dropout, 3), ("masks (weights)", MultirateMask, 3)],
)
def test_networks(method: str, kind: type[nn.Module], count: int) -> None:
    model = demo.network(method, demo.Choice(0.1, p=0.5, k=5), 16).eval()
    assert sum(isinstance(module, kind) for module in model) == count
    assert model(torch.zeros(2, 64)).shape == (2, 10)


@pytest.mark.parametrize("method", demo.CHOICES)
def test_a_training_repeats_whatever_ran_before(method: str) -> None:
    choice = demo.CHOICES[method][-1]
    first = demo.train(SMOKE, method, choice, seed=5)
    torch.rand(7)
    second = demo.train(SMOKE, method, choice, seed=5)
    assert first["accuracy per look"] == second["accuracy per look"]


def test_the_first_of_the_best_candidates_is_chosen() -> None:
    record = records.Record("demo", "smoke", {}, "cpu", 1, {})
    for seed, accuracies in ((1000, [50.0, 80.0, 70.0]), (1001, [50.0, 60.0, 70.0])):
        record.add(f"search {seed}", "search SGD", (seed,), 1.0, [{"validation accuracy": accuracies}])
    assert demo.best(record, "SGD") == 1


def test_a_choice_says_what_it_is() -> None:
    assert str(demo.Choice(0.1)) == "h = 0.1"
    assert str(demo.Choice(0.2, p=0.5, k=5)) == "h = 0.2, p = 0.5, k = 5"
    assert str(demo.Choice(0.4, weight_decay=1e-3)) == "h = 0.4, weight decay = 0.001"
