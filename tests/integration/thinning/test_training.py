"""Training a thin model of any architecture is training with columns at zero and entries put back, step by step."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from helpers.architectures import ARCHITECTURES, build
from helpers.thin_oracle import LiteralTraining, Make, absent_entries, call, loss_of
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import mrreg
from mrreg.masks.mask import find_mask
from mrreg.thinning.paths import NoDropout

K = 3
OPTIMIZERS: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.001, momentum=0.9, weight_decay=0.01),
    "AdamW": partial(AdamW, lr=0.001, eps=0.01),  # an epsilon that rounding of gradients near zero is nothing beside
}


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
    ("name", "optimizer"), [*((name, "AdamW") for name in ARCHITECTURES), *((name, "SGD") for name in WITH_MOMENTUM)]
)
def test_cycle_equals_the_literal_loop(name: str, optimizer: str) -> None:
    model, inputs = double(name)
    plain = copy.deepcopy(model)
    model, _ = mrreg.thin(model, p=0.5, k=K, example_inputs=inputs)
    groups = find_mask(model).groups  # type: ignore[union-attr]
    ours = OPTIMIZERS[optimizer](model.parameters())
    mrreg.attach(ours, model)
    literal = LiteralTraining(plain, groups, OPTIMIZERS[optimizer], K, boost=K, rescale=True)
    for t in range(K + 2):
        with NoDropout():
            torch.manual_seed(t)  # for blocks that are left out at random
            expected = literal.step(inputs)
            torch.manual_seed(t)
            ours.zero_grad()
            loss = loss_of(call(model, inputs))
            loss.backward()  # type: ignore[no-untyped-call]
        if t % K < K - 1:
            for key, gone in absent_entries(model, groups, t // K).items():
                grad = dict(model.named_parameters()).get(key, torch.zeros(())).grad
                assert grad is None or not grad[gone].any(), key
        ours.step()
        torch.testing.assert_close(loss.detach(), expected, rtol=1e-9, atol=1e-9)
        for (key, value), wanted in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-9, msg=key)
