"""The mask of a module: what it accepts, what it looks like from outside, when it says that nothing drives it."""

import copy
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from helpers.masks import attached, batch, masks, mlp, of, plain_mlp, same_bits, train
from torch import nn

import mrreg


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"p": 1.5}, ValueError, r"p must be in \[0, 1\], got 1.5"),
        ({"p": float("nan")}, ValueError, r"p must be in \[0, 1\], got nan"),
        ({"p": True}, TypeError, "p must be a number.*got True"),
        ({"k": 0}, ValueError, "k must be a whole number, at least 1, got 0"),
        ({"k": 2.0}, TypeError, "k must be a whole number.*got 2.0"),
        ({"boost": -1.0}, ValueError, "boost must be finite, at least 0, got -1.0"),
        ({"boost": "k"}, TypeError, "boost must be a number.*got 'k'"),
        ({"structure": "unit"}, ValueError, "structure must be one of 'weight', 'input', .*got 'unit'"),
        ({"structure": None}, TypeError, "structure must be one of.*got None"),
        ({"rescale": 1}, TypeError, "rescale must be True or False, got 'int'"),
        ({"parameters": 5}, TypeError, "parameters must be several names, glob patterns or parameters, got 5"),
        ({"parameters": ["wieght"]}, ValueError, "parameters must be.*got 'wieght'. Did you mean 'weight'?"),
        ({"parameters": [3]}, TypeError, "parameters must be names, glob patterns or parameters.*got 3"),
        ({"parameters": [torch.ones(2)]}, ValueError, r"parameters must be.*got 'a tensor \(2,\)'"),
        ({"parameters": []}, ValueError, "module must be a module with a parameter to mask, got 'Linear'"),
        ({"parameters": ["bias"], "structure": "input"}, ValueError, "bias must be.* one input dimension"),
    ],
)
def test_arguments_out_of_range_are_named(options: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=f"MultirateMask: {says}"):
        mrreg.MultirateMask(nn.Linear(3, 2), **options)
    mask = of(mrreg.MultirateMask(nn.Linear(3, 2), k=4))
    for name, value in options.items():
        if name in ("p", "k", "boost", "rescale"):  # which may change
            before = getattr(mask, name)
            with pytest.raises(kind, match=f"MultirateMask: {says}"):
                setattr(mask, name, value)
            assert getattr(mask, name) == before


class Divided(nn.Module):
    """Divides a weight by the norms along a dimension, or by its entries' sizes."""

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / (weight.abs() if self.dim is None else weight.norm(dim=self.dim, keepdim=True))


def divided(dim: int | None) -> nn.Module:
    layer = nn.Linear(6, 8)
    nn.utils.parametrize.register_parametrization(layer, "weight", Divided(dim))
    return layer


@pytest.mark.parametrize(
    ("module", "kind", "says"),
    [
        (torch.relu, TypeError, "module must be an nn.Module"),
        (nn.Linear, TypeError, r"Linear is a class: give an instance, Linear\(\.\.\.\)"),
        ((nn.Linear(2, 2), "report"), TypeError, "in a tuple: unpack it"),
        (nn.DataParallel(nn.Linear(2, 2)), ValueError, "without nn.DataParallel.*Mask the module inside"),
        (nn.LayerNorm((2, 3)), ValueError, "module must be a module with a parameter to mask, got 'LayerNorm'"),
        (nn.LazyLinear(2), RuntimeError, "no shape yet for 'bias', 'weight'. Run one forward first."),
        (mrreg.MultirateMask(nn.Linear(2, 2)), ValueError, "module must be without masks inside.*do not nest"),
        (nn.Sequential(mrreg.MultirateMask(nn.Linear(2, 2))), ValueError, "without masks inside, got '0'"),
        (
            divided(0),
            ValueError,
            "the weight of parametrizations.weight.original must be finite where one entry of each",
        ),
        (divided(None), ValueError, "must be finite where one entry"),
        (nn.Linear(2, 2, dtype=torch.complex64), TypeError, "real.*got torch.complex64. Complex parameters cannot"),
    ],
)
def test_modules_that_cannot_be_masked_are_refused(module: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        mrreg.MultirateMask(module)


def test_a_weight_over_the_norm_of_its_rows_can_be_masked() -> None:
    layer = mrreg.MultirateMask(divided(1), p=0.9, k=2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    mrreg.attach(optimizer, layer)
    for _ in range(6):
        layer(torch.randn(3, 6)).square().sum().backward()
        optimizer.step()
        assert all(p.isfinite().all() for p in layer.parameters())


def test_numbers_of_other_libraries_are_numbers() -> None:
    mask = of(mrreg.MultirateMask(nn.Linear(3, 2), np.float32(0.5), np.int64(4), boost=np.float64(2)))  # type: ignore[arg-type]
    assert (mask.p, mask.k, mask.boost, mask.rescale) == (0.5, 4, 2.0, False)
    assert of(mrreg.MultirateMask(nn.Linear(3, 2), structure="input")).rescale
    assert type(mask.k) is int
    mask.boost = None
    assert mask.boost == 4


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (None, ["0.weight", "1.weight"]),
        ("1.weight", ["1.weight"]),
        (["*.bias"], ["0.bias", "1.bias", "2.bias"]),
        (["0.*", "1.weight"], ["0.weight", "0.bias", "1.weight"]),
    ],
)
def test_which_parameters(wanted: Any, names: list[str]) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.LayerNorm((2, 2)))
    assert [t.name for t in of(mrreg.MultirateMask(copy.deepcopy(module), parameters=wanted)).targets] == names
    by_tensor = mrreg.MultirateMask(module, parameters=[module.get_parameter(name) for name in names])
    assert [t.name for t in of(by_tensor).targets] == names


def test_the_module_stays_itself() -> None:
    layer = nn.Linear(3, 2)
    mask: Any = mrreg.MultirateMask(layer, k=4)
    assert mask is layer
    assert isinstance(mask, nn.Linear)
    assert isinstance(mask, mrreg.MultirateMask)
    assert not isinstance(nn.Linear(3, 2), mrreg.MultirateMask)
    assert not isinstance("mask", mrreg.MultirateMask)
    assert type(mask).__name__ == "Linear"
    assert "p=0.5, structure='weight', k=4, boost=None, rescale=False" in repr(mask)
    plain: Any = mrreg.unwrap(mask)
    assert plain is layer
    assert not isinstance(plain, mrreg.MultirateMask)
    assert type(plain) is nn.Linear
    container: Any = mrreg.MultirateMask(nn.Sequential(layer, nn.ReLU()))
    assert list(container) == [layer, container[1]]
    assert repr(container).startswith("Sequential(\n  mask(p=0.5")
    assert not isinstance(container[:1], mrreg.MultirateMask)


def test_a_shallow_copy_leaves_the_mask_with_its_original() -> None:
    model, optimizer = attached(nn.Linear(6, 3))
    expected = model(batch(0))
    assert torch.equal(copy.copy(model)(batch(0)), expected)
    expected.sum().backward()
    optimizer.step()
    assert of(model).root() is model


def test_attributes_of_the_module_are_its_own() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.p = nn.Linear(4, 4), 7
            self.register_buffer("boost", torch.ones(4))

        def forward(self, x: torch.Tensor) -> Any:
            assert self.p == 7
            return self.k(x) * self.boost

    module: Any = attached(Attention())[0]
    module(torch.ones(2, 4)).sum().backward()
    module.p = 8
    assert (module.p, of(module).p, of(module).k) == (8, 0.5, 3)
    for plain in (nn.Linear(2, 2), mrreg.unwrap(mrreg.MultirateMask(nn.Linear(2, 2))), None):
        with pytest.raises(ValueError, match=r"MultirateMask.of: module must be one with a MultirateMask, got"):
            of(plain)


@pytest.mark.parametrize("assign", [False, True])
def test_parameters_and_state_dict_have_the_plain_names_and_load_both_ways(assign: bool) -> None:
    model, plain, x = mlp(), plain_mlp(), batch(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    state = model.state_dict()
    assert list(state) == list(plain.state_dict()) == [name for name, _ in model.named_parameters()]
    assert state._metadata == plain.state_dict()._metadata  # type: ignore[attr-defined]
    assert model.state_dict(keep_vars=True)["0.weight"] is next(model.parameters())
    zeros = {name: torch.zeros_like(value) for name, value in state.items()}
    assert not torch.func.functional_call(model, zeros, x).any()
    assert torch.equal(torch.func.functional_call(model, state, x), model(x))
    for source, target in ((model, plain), (plain, model), (model, copy.deepcopy(model))):
        for p in source.parameters():
            p.data.add_(1)
        result = target.load_state_dict(dict(source.state_dict()), strict=True, assign=assign)
        assert not result.missing_keys
        assert not result.unexpected_keys
        assert same_bits(source, target)


@pytest.mark.parametrize("when", ["before attach", "after attach"])
def test_a_layer_that_is_parametrized_inside_its_mask_is_an_error_that_says_what_to_do(when: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if when == "after attach":
        mrreg.attach(optimizer, model)
    nn.utils.parametrizations.weight_norm(masks(model)[0])
    with pytest.raises(RuntimeError, match=r"was changed since it got its mask: 'weight' is gone.*mrreg\.unwrap"):
        train(model, optimizer, 1) if when == "after attach" else mrreg.attach(optimizer, model)


def test_an_undriven_mask_is_dense_and_warns_once() -> None:
    model, plain = mlp(), plain_mlp()
    with pytest.warns(mrreg.NoEffectWarning, match=re.escape("Call mrreg.attach(optimizer, model)")) as caught:
        assert torch.equal(model(batch(0)), plain(batch(0)))
    assert len(caught) == 2  # one per mask
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(batch(0))
        mlp(p=0.0)(batch(0))
        mlp().eval()(batch(0))
        average = torch.optim.swa_utils.AveragedModel(nn.Sequential(mlp(), nn.BatchNorm1d(3)))
        torch.optim.swa_utils.update_bn([batch(0)], average)  # in training mode, but nobody trains
