"""Layers that are not torch's, beside a dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mrreg

X = torch.randn(4, 6)


class Own(nn.Module):
    """Computes what Linear does, in its own words."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(outputs, inputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


class Transposed(nn.Module):
    """Linear with its weight the other way round, as GPT-2 has it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


@pytest.mark.parametrize("kind", [Own, Transposed])
def test_swap_dropout_tries_layers_whatever_their_class(kind: Any) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = kind(6, 6), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.drop(self.layer(x))  # type: ignore[no-any-return]

    model, report = mrreg.swap_dropout(Residual(), example_inputs=X)
    assert report["drop"].masks == {"layer": "output"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    assert int((model(X) == X).all(0).sum()) == 3
