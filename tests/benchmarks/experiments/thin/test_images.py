"""Studies on images: what methods share, the schedule, whose statistics BatchNorm has."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.core import runner
from benchmarks.core.comparison import Job
from benchmarks.core.records import load
from benchmarks.core.training import mean_loss
from benchmarks.experiments.thin import batchnorm, convolutions, images, vit
from benchmarks.experiments.thin.images import Draw

X = torch.rand(3, 3, images.SIZE, images.SIZE)


@pytest.fixture(autouse=True)
def pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images, drawn at random, in the place of CIFAR-10."""
    generator = torch.Generator().manual_seed(0)
    x, test_x = (torch.rand(count, *X.shape[1:], generator=generator) for count in (160, 50))
    y, test_y = (torch.arange(count) % images.CLASSES for count in (160, 50))
    monkeypatch.setattr(images, "pixels", lambda *_: (x, y, test_x, test_y))


def job(setting: object = None, steps: int = 20) -> Job:
    return Job("compare", steps, setting, torch.device("cpu"), None, "")


@pytest.mark.parametrize("name", [*vit.METHODS, *vit.MORE])
def test_every_transformer_begins_with_the_same_weights(name: str) -> None:
    config, method = vit.PRESETS["smoke"], (vit.METHODS | vit.MORE)[name]
    first, loop = (vit.build(config, each, 1, job()).model.eval() for each in (vit.Method(), replace(method, p=0.3)))
    torch.testing.assert_close(loop(X), first(X))


@pytest.mark.parametrize("name", convolutions.METHODS)
@pytest.mark.parametrize("network", ["ResNet", "CNN"])
def test_every_convolutional_network_begins_with_the_same_weights(name: str, network: str) -> None:
    config, method = convolutions.PRESETS["smoke"], replace(convolutions.METHODS[name], p=0.25)
    plain, own = (convolutions.build(config, each, 1, job(network)) for each in (convolutions.Method(), method))
    torch.testing.assert_close(own.model.eval()(X), plain.model.eval()(X))


@pytest.mark.parametrize("method", [vit.Method("dropout", 0.5), vit.Method("depth", 0.9), vit.Method("thin", 0.5)])
def test_what_a_transformer_leaves_out_in_training_changes_its_output(method: vit.Method) -> None:
    loop = vit.build(vit.PRESETS["smoke"], method, 1, job())
    whole = loop.model.eval()(X)
    torch.manual_seed(1)
    assert not torch.allclose(loop.model.train()(X), whole)


@pytest.mark.parametrize("grid", [vit.GRID, convolutions.GRID])
def test_every_method_has_as_many_trials(grid: dict[str, list[object]]) -> None:
    assert {len(tried) for tried in grid.values()} == {2}


def test_images_are_drawn_from_those_that_do_not_validate_and_the_rate_falls_to_nothing() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(X[0].numel(), images.CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    loop = images.loop(Draw(100, 160, 50, 50, 20), model, optimizer, 3, job())
    drawn, held = (torch.cat([x for x, _ in loop.splits[name]()]) for name in ("drawn", "validation"))
    assert (len(drawn), len(held)) == (100, 50)
    assert not {tuple(x.flatten()[:9].tolist()) for x in drawn} & {tuple(x.flatten()[:9].tolist()) for x in held}
    rates = []
    for _ in range(20):
        loop.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:2] == [0.25, 0.5]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_statistics_of_joint_steps_move_at_every_fifth_step_alone() -> None:
    config = batchnorm.PRESETS["smoke"]
    loop = batchnorm.build(config, batchnorm.METHODS["boost 5, joint steps"], 1, job("ResNet"))
    layer = next(module for module in loop.model.modules() if isinstance(module, nn.BatchNorm2d))
    assert layer.running_mean is not None
    moved = []
    for _ in range(10):
        before = layer.running_mean.clone()
        loop.step()
        moved.append(not torch.equal(before, layer.running_mean))
    assert moved == [False] * 4 + [True] + [False] * 4 + [True]


@pytest.mark.parametrize("name", batchnorm.METHODS)
def test_statistics_taken_anew_are_those_of_the_whole_network_and_leave_the_training_alone(name: str) -> None:
    loop = batchnorm.build(batchnorm.PRESETS["smoke"], batchnorm.METHODS[name], 1, job("ResNet"))
    loop.metric = mean_loss
    for _ in range(3):
        loop.step()
    before = {key: value.clone() for key, value in loop.model.state_dict().items()}
    assert batchnorm.normalized(loop) != loop.evaluate("test")
    torch.testing.assert_close(dict(loop.model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("benchmark", [vit.BENCHMARK, convolutions.BENCHMARK, batchnorm.BENCHMARK])
def test_studies_run(benchmark: runner.Benchmark[vit.Config], tmp_path: Path) -> None:
    outcome = runner.run(benchmark, "smoke", tmp_path)
    assert outcome.finished == outcome.total
    found = load(outcome.path)
    for section in benchmark.sections[:1]:
        assert all(len(row.values(found)) == 2 for row in section.rows[:3])
