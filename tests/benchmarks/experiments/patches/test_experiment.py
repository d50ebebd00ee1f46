"""The patches benchmark: its batches, its evaluation, its record."""

import pytest
import torch
from helpers.cifar import images
from torch import nn

from benchmarks.experiments.patches import data as patches_data
from benchmarks.experiments.patches import experiment as patches


@pytest.mark.parametrize("preset", patches.PRESETS)
def test_copies_are_evaluated_when_they_have_just_been_merged(preset: str) -> None:
    config = patches.PRESETS[preset]
    assert config.every % patches.K == 0
    assert config.steps % config.every == 0


def test_statistics_are_those_of_training_images_alone() -> None:
    patterns = patches_data.Patterns.draw(torch.Generator().manual_seed(0))
    data = patches_data.training_set(images(40), patterns, torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3072, 10))
    net(torch.full((4, 3, 32, 32), 100.0))  # what came before is forgotten
    patches.fitted(net, data, 30, list)
    mean = data.batch(torch.arange(30))[0].mean((0, 2, 3))
    torch.testing.assert_close(net.state_dict()["0.running_mean"], mean)
