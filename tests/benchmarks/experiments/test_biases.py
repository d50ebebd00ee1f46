"""The biases benchmark: its networks, its augmentation, its pairing."""

import pytest
import torch
from helpers.cifar import images
from torch import nn
from torchvision.models import resnet34

from benchmarks.experiments import biases


def test_paper_preset_is_resnet34_with_the_small_stem() -> None:
    theirs = resnet34(num_classes=10)
    theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool = nn.Identity()
    ours = biases.resnet(biases.PRESETS["paper"].blocks, biases.PRESETS["paper"].width)
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
    pairs = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    for mine, other in pairs:
        mine.copy_(other)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("method", biases.METHODS)
def test_only_the_last_bias_is_slow(method: str) -> None:
    net = biases.resnet((1, 1), 2)
    groups = biases.optimizer(biases.METHODS[method], net, momentum=0.9).param_groups
    slow = [p for group in groups if group.get("period", 1) == biases.K for p in group["params"]]
    assert [id(p) for p in slow] == ([id(net.get_parameter("fc.bias"))] if "multirate" in method else [])
    assert sum(len(group["params"]) for group in groups) == len(list(net.parameters()))
    assert all(group["lr"] == 0.1 and group["momentum"] == 0.9 for group in groups)


def test_augmented_images_are_crops_of_the_padded_ones_flipped_or_not() -> None:
    x = images(40).x
    got = biases.augment(x, torch.Generator().manual_seed(0))
    padded = nn.functional.pad(x, (4, 4, 4, 4))
    found = []
    for image, original in zip(got, padded, strict=True):
        crops = {
            (down, right, flip): crop.flip(2) if flip else crop
            for down in range(9)
            for right in range(9)
            for crop in (original[:, down : down + 32, right : right + 32],)
            for flip in (False, True)
        }
        (place,) = (place for place, crop in crops.items() if torch.equal(crop, image))
        found.append(place)
    assert {flip for _, _, flip in found} == {False, True}
    assert len({down for down, _, _ in found}) > 5
    assert len({right for _, right, _ in found}) > 5
