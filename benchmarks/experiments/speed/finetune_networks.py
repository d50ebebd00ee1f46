"""The networks whose fine-tuning is timed, and batches for them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet34, resnet50

CLASSES = 10


@dataclass(frozen=True)
class Case:
    """A network, its batch, and the precision of its forward."""

    network: str
    batch: int  # examples a step
    size: int  # pixels along a side, or tokens
    precision: str = "fp32"  # or "bf16" for autocast
    target: float | None = None  # the speed-up at k = 5 that the library promises; None promises nothing

    @property
    def name(self) -> str:
        return f"{self.network}, {self.precision}, batch {self.batch}, size {self.size}"


@dataclass(frozen=True)
class Network:
    """A network: its constructor, the modules of its head, and a batch of its inputs."""

    build: Callable[[], nn.Module]
    head: tuple[str, ...]
    batch: Callable[[Case], Tensor]


def _resnet(build: Callable[..., nn.Module]) -> nn.Module:
    return build(num_classes=CLASSES).to(memory_format=torch.channels_last)


def _images(case: Case) -> Tensor:
    return torch.randn(case.batch, 3, case.size, case.size).contiguous(memory_format=torch.channels_last)


def _encoder(**sizes: Any) -> nn.Module:
    """An encoder for classification as transformers builds it; its default sizes are DistilBERT's."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    return DistilBertForSequenceClassification(DistilBertConfig(**{"num_labels": CLASSES} | sizes))


def _tokens(case: Case) -> Tensor:
    return torch.randint(64, (case.batch, case.size))


HEAD = ("pre_classifier", "classifier")
SMALL = {"n_layers": 2, "dim": 16, "hidden_dim": 32, "n_heads": 2, "vocab_size": 64}
NETWORKS = {
    "ResNet-34": Network(partial(_resnet, resnet34), ("fc",), _images),
    "ResNet-50": Network(partial(_resnet, resnet50), ("fc",), _images),
    "DistilBERT-sized encoder": Network(_encoder, HEAD, _tokens),
    "tiny encoder": Network(partial(_encoder, **SMALL), HEAD, _tokens),
}
