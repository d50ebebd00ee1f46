"""Training a thin model of any architecture is training with columns at zero and entries put back, step by step."""

from functools import partial
from typing import Any

import pytest
import torch
from helpers.architectures import build
from helpers.thin_oracle import Make, check_training
from torch import Tensor, nn
from torch.optim import SGD, AdamW

K = 3
OPTIMIZERS: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.001, momentum=0.9, weight_decay=0.01),
    "AdamW": partial(AdamW, lr=0.001, eps=0.01),  # an epsilon that rounding of gradients near zero is nothing beside
}


# the others are alike for the optimizer: docs/coverage.md has a step of each
UNLIKE = (
    "lenet",
    "resnext",
    "mobilenet_v3",
    "efficientnet",
    "vit",
    "swin",
    "decoder",
    "bert",
    "gpt2",
    "llama",
    "t5",
    "phi3",
)
WITH_MOMENTUM = ("mlp", "resnet18", "bert")  # what an optimizer does to entries does not depend on the model


def double(name: str) -> tuple[nn.Module, Any]:
    """An architecture in float64, without dropout."""
    model, inputs = build(name)
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):  # draws where `NoDropout` does not look
            module.dropout = 0.0
    model.double().train()
    if isinstance(inputs, dict):
        return model, {key: as_double(value) for key, value in inputs.items()}
    return model, tuple(map(as_double, inputs if isinstance(inputs, tuple) else (inputs,)))


def as_double(value: Tensor) -> Tensor:
    """Float64 for floats; eight images for two, or BatchNorm of one pixel makes much of rounding errors."""
    if value.dim() == 4:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(8, *value.shape[1:], dtype=torch.float64, generator=generator)
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize(
    ("name", "optimizer"), [*((name, "AdamW") for name in UNLIKE), *((name, "SGD") for name in WITH_MOMENTUM)]
)
def test_cycle_equals_the_literal_loop(name: str, optimizer: str) -> None:
    check_training(*double(name), OPTIMIZERS[optimizer], K)
