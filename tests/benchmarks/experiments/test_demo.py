"""The demo is fair: splits do not overlap, every method gets the same search, and a run repeats exactly."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.core import records
from benchmarks.core.comparison import Job
from benchmarks.core.training import Plan, fit
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
    steps = {method: sorted(options["lr"] for options in grid) for method, grid in demo.GRID.items()}
    assert steps.keys() == demo.METHODS.keys()
    assert len({tuple(each) for each in steps.values()}) == 1
    assert all(len(set(map(str, grid))) == len(grid) for grid in demo.GRID.values())


def test_every_method_begins_with_the_same_weights() -> None:
    weights = {}
    for kind in demo.METHODS:
        torch.manual_seed(3)
        weights[kind] = [parameter.detach() for parameter in demo.network(demo.Method(kind, p=0.5), 16).parameters()]
    for each in weights.values():
        torch.testing.assert_close(each, weights["SGD"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("method", "kind", "count"),
    [("SGD", nn.Dropout, 0), ("dropout", nn.Dropout, 3), ("masks (weights)", MultirateMask, 3)],
)
def test_networks(method: str, kind: type[nn.Module], count: int) -> None:
    model = demo.network(demo.Method(method, p=0.5), 16).eval()
    assert sum(isinstance(module, kind) for module in model) == count
    assert model(torch.zeros(2, 64)).shape == (2, 10)


@pytest.mark.parametrize("method", demo.METHODS)
def test_a_training_repeats_whatever_ran_before(method: str) -> None:
    def train() -> dict[str, dict[int, float]]:
        job = Job("compare", 10, None, torch.device("cpu"), None, method)
        loop = demo.build(SMOKE, replace(demo.METHODS[method], **demo.GRID[method][-1]), 5, job)
        return fit(loop, Plan((5, 10), ("validation", "test", "train")), torch.device("cpu")).values

    first = train()
    torch.rand(7)
    assert train() == first


def test_the_step_size_falls_to_zero() -> None:
    loop = demo.build(SMOKE, demo.Method("SGD", lr=0.4), 5, Job("compare", 4, None, torch.device("cpu"), None, "SGD"))
    sizes = []
    for _ in range(4):
        loop.step()
        sizes.append(loop.optimizer.param_groups[0]["lr"])
    assert sizes == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_the_report_says_what_was_chosen() -> None:
    record = records.Record("demo", "smoke", {}, "cpu", 1, {})
    for accuracy, options in enumerate(demo.GRID["masks (units)"]):
        trial = f"search: masks (units), lr = {options['lr']:g}, p = {options['p']:g}, k = {options['k']}"
        record.add(trial, trial, (1000,), 1.0, [{"validation accuracy": accuracy}])
    assert "masks (units): lr = 0.8, p = 0.5, k = 5." in demo.chosen(record)[0]
