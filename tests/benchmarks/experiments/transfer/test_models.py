"""Pretrained networks: what is loaded, what is new, which parts they have, what is said where weights are missing."""

from pathlib import Path

import pytest
import torch

from benchmarks.core.errors import UserError
from benchmarks.experiments.transfer.models import SOURCES, Name, parts, prepare, pretrained


def saved(root: Path) -> dict[str, torch.Tensor]:
    """Return the MobileNet's weights, which lie as they are published where the benchmark expects them."""
    state = SOURCES["mobilenet"].build().state_dict()
    published = {key: value for key, value in state.items() if "num_batches_tracked" not in key}
    (root / "models").mkdir(parents=True)
    torch.save({"state_dict": published, "epoch": 1}, root / SOURCES["mobilenet"].file)
    return state


def test_all_but_the_last_layer_is_pretrained_and_that_follows_from_the_seed(tmp_path: Path) -> None:
    state = saved(tmp_path)
    nets = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        nets.append(pretrained("mobilenet", 10, tmp_path).state_dict())
    one, two, other = nets
    assert one["fc.weight"].shape == (10, 256)
    assert one.keys() == state.keys()
    for key, tensor in one.items():
        assert torch.equal(tensor, two[key])
        assert torch.equal(tensor, state[key]) or key.startswith("fc.")
    assert not torch.equal(one["fc.weight"], other["fc.weight"])


@pytest.mark.parametrize("name", SOURCES)
def test_every_parameter_is_in_one_part_and_the_last_layer_comes_first(name: Name) -> None:
    with torch.device("meta"):
        net = SOURCES[name].build()
    modules = parts(name, len(SOURCES[name].parts))
    found = [p for module in modules for p in net.get_submodule(module).parameters()]
    assert len(found) == len(set(found)) == len(list(net.parameters()))
    assert parts(name, 1) == ["fc"]


@pytest.mark.parametrize("content", [{}, {"state_dict": {"fc.weight": torch.zeros(1)}}, [1]])
def test_weights_of_something_else_are_named(content: object, tmp_path: Path) -> None:
    saved(tmp_path)
    torch.save(content, tmp_path / SOURCES["mobilenet"].file)
    with pytest.raises(UserError, match=r"mobilenet_v1_025_imagenet\.pt: must hold the weights of MobileNetV1"):
        pretrained("mobilenet", 10, tmp_path)


@pytest.mark.data
def test_the_real_weights_fit(data_dir: Path) -> None:
    assert pretrained("mobilenet", 10, data_dir).get_parameter("fc.bias").shape == (10,)


def test_prepared_images_are_large_and_normalized() -> None:
    white = prepare(torch.full((2, 3, 32, 32), 255, dtype=torch.uint8), 96)
    assert white.shape == (2, 3, 96, 96)
    for channel, (mean, std) in enumerate(zip((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)):
        torch.testing.assert_close(white[:, channel], torch.full((2, 96, 96), (1 - mean) / std))
