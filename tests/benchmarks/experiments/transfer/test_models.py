"""Pretrained networks: what is loaded, what is new, which parts they have, what is said where weights are missing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.core.errors import UserError
from benchmarks.experiments.transfer import models as transfer_models
from benchmarks.experiments.transfer.models import SOURCES, MobileNetV1, Name, parts, pretrained


def saved(root: Path, name: Name = "mobilenet") -> dict[str, torch.Tensor]:
    """Return a network's weights, which lie as they are published where the benchmark expects them."""
    state = SOURCES[name].build().state_dict()
    published: dict[str, Any] = {key: value for key, value in state.items() if "num_batches_tracked" not in key}
    match name:
        case "mobilenet":
            published = {"state_dict": published, "epoch": 1}
    (root / "models").mkdir(parents=True)
    torch.save(published, root / SOURCES[name].file)
    return state


def test_mobilenet_has_as_many_parameters_as_its_file() -> None:
    assert sum(p.numel() for p in MobileNetV1().parameters()) == 470_072


@pytest.mark.parametrize(
    ("name", "classes", "features"),
    [("mobilenet", 10, 256), ("resnet34", 10, 512), ("resnet50", 100, 2048)],
)
def test_all_but_the_last_layer_is_pretrained_and_that_follows_from_the_seed(
    name: Name, classes: int, features: int, tmp_path: Path
) -> None:
    state = saved(tmp_path, name)
    nets = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        nets.append(pretrained(name, classes, tmp_path).state_dict())
    one, two, other = nets
    assert one["fc.weight"].shape == (classes, features)
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


@pytest.mark.parametrize(
    ("name", "file", "data"),
    [
        ("mobilenet", "mobilenet_v1_025_imagenet.pt", "ImageNet"),
        ("resnet34", "resnet34-b627a593.pth", "ImageNet"),
        ("resnet50", "resnet50-0676ba61.pth", "ImageNet"),
    ],
)
def test_missing_weights_are_named(name: Name, file: str, data: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"trained on {data}: expected models/{file} in .*--data-dir"):
        pretrained(name, 10, tmp_path)


def test_a_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.delenv("MRREG_DATA", raising=False)
    monkeypatch.setattr("benchmarks.data.locate.DEFAULT_FOLDER", tmp_path)
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", fails)
    with pytest.raises(UserError, match=r"ResNet-34.*expected models/resnet34.*download failed: OSError: no network"):
        pretrained("resnet34", 10, None)


def test_weights_that_are_not_there_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(url: str, folder: str, **_: object) -> None:
        asked.append((url, folder))
        saved(tmp_path)

    monkeypatch.delenv("MRREG_DATA", raising=False)
    monkeypatch.setattr("benchmarks.data.locate.DEFAULT_FOLDER", tmp_path)
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", fake)
    known = replace(SOURCES["mobilenet"], url="https://example.org/net.pt")
    monkeypatch.setitem(transfer_models.SOURCES, "mobilenet", known)
    pretrained("mobilenet", 10, None)
    assert asked == [("https://example.org/net.pt", str(tmp_path / "models"))]


@pytest.mark.parametrize("content", [{}, {"state_dict": {"fc.weight": torch.zeros(1)}}, [1]])
def test_weights_of_something_else_are_named(content: object, tmp_path: Path) -> None:
    saved(tmp_path)
    torch.save(content, tmp_path / SOURCES["mobilenet"].file)
    with pytest.raises(UserError, match=r"mobilenet_v1_025_imagenet\.pt: must hold the weights of MobileNetV1"):
        pretrained("mobilenet", 10, tmp_path)


def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / SOURCES["mobilenet"].file).write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match="must hold the weights of MobileNetV1"):
        pretrained("mobilenet", 10, tmp_path)


@pytest.mark.data
def test_the_real_weights_fit(data_dir: Path) -> None:
    assert pretrained("mobilenet", 10, data_dir).get_parameter("fc.bias").shape == (10,)
