"""Patch-augmented images: shares, patterns, and where the patch is."""

from dataclasses import replace

import pytest
import torch
from helpers.cifar import images

from benchmarks.data.cifar import normal
from benchmarks.experiments.patches import data as patches_data
from benchmarks.experiments.patches.data import Patched, Patterns


@pytest.fixture
def patterns() -> Patterns:
    return Patterns.draw(torch.Generator().manual_seed(1))


def everything(data: Patched) -> tuple[torch.Tensor, torch.Tensor]:
    return data.batch(torch.arange(len(data.y)))


def test_a_fifth_is_free_and_a_fifth_of_the_rest_is_the_patch_alone(patterns: Patterns) -> None:
    data = images(5000)
    train = patches_data.training_set(data, patterns, torch.Generator().manual_seed(0))
    free, only = train.patch == 0, train.image == 0
    assert int(free.sum()) == 1000
    assert not (free & only).any()
    assert int(only.sum()) / 5000 == pytest.approx(0.16, abs=0.02)


def test_shifts_are_one_with_an_image_and_up_to_seven_quarters_without(patterns: Patterns) -> None:
    sets = patches_data.evaluation_sets(images(2000), patterns, torch.Generator().manual_seed(0))
    both, only = sets["patched"].shift, sets["patch only"].shift
    assert set(both.tolist()) == {1.0, -1.0}
    assert abs(both.mean()) < 0.1
    assert only.abs().max() < 1.75
    assert only.abs().mean().item() == pytest.approx(0.875, abs=0.05)
    assert abs(only.mean()) < 0.1


def test_each_kind_of_test_image_is_what_its_name_says(patterns: Patterns) -> None:
    data = images(20)
    sets = patches_data.evaluation_sets(data, patterns, torch.Generator().manual_seed(0))
    assert tuple(sets) == patches_data.SETS
    plain = normal(data.test_x)
    centre = (slice(None), slice(None), slice(12, 19), slice(12, 19))
    shown = {name: everything(each)[0] for name, each in sets.items()}
    torch.testing.assert_close(shown["clean"], plain)
    for name, background in (("patched", plain), ("patch only", torch.zeros_like(plain))):
        added = shown[name] - background
        expected = [patterns.z + s * patterns.zeta[y] for s, y in zip(sets[name].shift, data.test_y, strict=True)]
        torch.testing.assert_close(added[centre], torch.stack(expected), atol=1e-5, rtol=0)
        added[centre] = 0
        assert added.abs().max() < 1e-5


def test_only_the_middle_is_shown_where_that_is_asked_for(patterns: Patterns) -> None:
    whole, middle = (
        patches_data.training_set(images(10), patterns, torch.Generator().manual_seed(0), side) for side in (32, 16)
    )
    assert torch.equal(everything(replace(middle, x=whole.x))[0], everything(whole)[0][:, :, 8:24, 8:24])
