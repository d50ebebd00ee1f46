"""Units of layers that are not torch's: found where the layer computes what Linear does, which is tried."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.masks import bits
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


class Counting(Own):
    """Changes when it is called."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) + 0 * torch.rand(())


class LowRank(Own):
    """Computes what Linear does until its second term has been trained."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.a, self.b = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.a.T @ self.b.T


class Scaled(Own):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


@pytest.mark.parametrize(("kind", "dim"), [(Own, 1), (Transposed, 0), (Counting, 1)])
def test_layers_that_compute_linear_have_units(kind: Any, dim: int) -> None:
    state = torch.get_rng_state()
    layer: Any = kind(6, 4)
    drawn = torch.get_rng_state()
    model: Any = mrreg.mask(nn.Sequential(layer), {"0": 0.5}, structure="input")
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not torch.equal(drawn, state)
    assert getattr(layer, "calls", 0) == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    kept = bits(layer)["weight"].bool().squeeze(1 - dim)
    assert int(kept.sum()) == 3
    weight = layer.weight if dim else layer.weight.T
    assert torch.allclose(model(X), F.linear(2 * X[:, kept], weight[:, kept], layer.bias), atol=1e-5)


@pytest.mark.parametrize("kind", [Own, Transposed])
def test_output_units_have_their_bias(kind: Any) -> None:
    layer = mrreg.MultirateMask(kind(6, 4), structure="output", parameters=["*"])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    mrreg.attach(optimizer, layer)
    assert int((layer(X) == 0).all(0).sum()) == 2


@pytest.mark.parametrize("kind", [LowRank, Scaled])
def test_layers_that_compute_something_else_have_none(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"weight must be a parameter with one input dimension"):
        mrreg.mask(nn.Sequential(kind(6, 4)), {"0": 0.5}, structure="input", parameters=["weight"])


@pytest.mark.parametrize("kind", [Own, Transposed, Scaled])
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
