"""Layers that are not torch's: found where they compute what Linear does, declared otherwise."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.masks import bits
from torch import Tensor, nn

import mrreg

X = torch.randn(4, 6)


class Own(nn.Linear):
    """Computes what Linear does, in its own words."""

    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight.T + self.bias


class Transposed(nn.Module):
    """Linear with its weight the other way round, as GPT-2 has it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class LowRank(nn.Linear):
    """Computes what Linear does until its second term has been trained."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.a, self.b = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + input @ self.a.T @ self.b.T


class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 3 * super().forward(input)


class Declared(Scaled):
    pass


class Counting(Own):
    """Changes when it is called."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.calls = 0

    def forward(self, input: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(input) + 0 * torch.rand(())


@pytest.mark.parametrize(("kind", "dim"), [(Own, 1), (Transposed, 0), (Counting, 1)])
def test_layers_that_compute_linear_are_masked(kind: Any, dim: int) -> None:
    model: Any = nn.Sequential(nn.Dropout(0.5), kind(6, 4))
    state = torch.get_rng_state()
    model, report = mrreg.swap_dropout(model, example_inputs=X)
    assert torch.equal(torch.get_rng_state(), state)
    assert report["0"].masks == {"1": "input"}
    assert getattr(model[1], "calls", 0) == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    kept = bits(model[1])["weight"].bool().squeeze(1 - dim)
    assert int(kept.sum()) == 3
    weight = model[1].weight if dim else model[1].weight.T
    assert torch.allclose(model(X), F.linear(2 * X[:, kept], weight[:, kept], model[1].bias), atol=1e-5)


@pytest.mark.parametrize("kind", [Own, Transposed])
def test_output_units_have_their_bias(kind: Any) -> None:
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


@pytest.mark.parametrize("kind", [LowRank, Scaled])
def test_layers_that_compute_something_else_are_left(kind: Any) -> None:
    with pytest.warns(mrreg.NoEffectWarning, match="no mask was put anywhere"):
        mrreg.swap_dropout(nn.Sequential(nn.Dropout(0.5), kind(6, 4)), example_inputs=X)


def test_hugging_faces_layer() -> None:
    Conv1D = pytest.importorskip("transformers.pytorch_utils").Conv1D  # noqa: N806
    model, report = mrreg.swap_dropout(nn.Sequential(nn.Dropout(0.5), Conv1D(4, 6)))
    assert report["0"].masks == {"1": "input"}
    model = mrreg.mask(nn.Sequential(Conv1D(4, 6)), {"0": 0.5}, structure="output", parameters=["weight", "bias"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    assert int((model(X) == 0).all(0).sum()) == 2


def test_a_declared_layer_is_masked_and_its_subclasses_are_not() -> None:
    mrreg.register_layer(Declared, {"weight": ("output", "input"), "bias": ("output",)})
    _, report = mrreg.swap_dropout(nn.Sequential(nn.Dropout(0.5), Declared(6, 4)), example_inputs=X)
    assert report["0"].masks == {"1": "input"}

    class Below(Declared):
        def forward(self, input: Tensor) -> Tensor:
            return input.new_ones(len(input), 4)

    with pytest.warns(mrreg.NoEffectWarning):
        mrreg.swap_dropout(nn.Sequential(nn.Dropout(0.5), Below(6, 4)), example_inputs=X)


@pytest.mark.parametrize(
    ("cls", "layout", "kind", "says"),
    [
        (3, {"weight": ("output", "input")}, TypeError, "register_layer: cls must be a subclass of torch.nn.Module"),
        (Scaled(2, 2), {"weight": ("output",)}, TypeError, "cls must be a subclass"),
        (Scaled, [("weight", "input")], TypeError, "layout must be a mapping from parameter names"),
        (Scaled, {"weight": "input"}, TypeError, "layout must be a mapping from parameter names"),
        (Scaled, {"weight": ("rows",)}, ValueError, r"layout\['weight'\] must be .*, got \('rows',\)"),
        (Scaled, {"weight": ("input", "input")}, ValueError, "each word once at most"),
        (Scaled, {"weight": (None, None)}, ValueError, "with a dimension of units"),
        (Scaled, {}, ValueError, "with a dimension of units"),
    ],
)
def test_declarations_are_checked(cls: Any, layout: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        mrreg.register_layer(cls, layout)
