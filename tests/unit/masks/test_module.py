"""The mask of a module: what it accepts, what it looks like from outside, when it says that nothing drives it."""

import copy
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from helpers.masks import batch, bits, masks, mlp, of, plain_mlp, same_bits, train
from torch import nn

import mrreg

NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"p": 1.5}, ValueError, r"p must be in \[0, 1\], got 1.5"),
        ({"p": -0.1}, ValueError, r"p must be in \[0, 1\], got -0.1"),
        ({"p": NAN}, ValueError, r"p must be in \[0, 1\], got nan"),
        ({"p": True}, TypeError, "p must be a number.*got True"),
        ({"p": "0.5"}, TypeError, "p must be a number.*got '0.5'"),
        ({"p": None}, TypeError, "p must be a number.*got None"),
        ({"k": 0}, ValueError, "k must be a whole number, at least 1, got 0"),
        ({"k": 2.0}, TypeError, "k must be a whole number.*got 2.0"),
        ({"k": True}, TypeError, "k must be a whole number.*got True"),
        ({"boost": -1.0}, ValueError, "boost must be finite, at least 0, got -1.0"),
        ({"boost": float("inf")}, ValueError, "boost must be finite, at least 0, got inf"),
        ({"boost": "k"}, TypeError, "boost must be a number.*got 'k'"),
        (
            {"structure": "unit"},
            ValueError,
            "structure must be one of 'weight', 'input', .*got 'unit'",
        ),
        ({"structure": ["weight"]}, TypeError, r"structure must be one of.*got \['weight'\]"),
        ({"structure": None}, TypeError, "structure must be one of.*got None"),
        ({"rescale": 1}, TypeError, "rescale must be True or False, got 'int'"),
        ({"parameters": 5}, TypeError, "parameters must be several names, glob patterns or parameters, got 5"),
        ({"parameters": ["wieght"]}, ValueError, "parameters must be.*got 'wieght'. Did you mean 'weight'?"),
        ({"parameters": ["x*"]}, ValueError, r"parameters must be.*got 'x\*'. There is: 'bias', 'weight'"),
        ({"parameters": [3]}, TypeError, "parameters must be names, glob patterns or parameters.*got 3"),
        ({"parameters": [torch.ones(2)]}, ValueError, r"parameters must be.*got 'a tensor \(2,\)'"),
        ({"parameters": []}, ValueError, "module must be a module with a parameter to mask, got 'Linear'"),
        (
            {"parameters": ["bias"], "structure": "input"},
            ValueError,
            "bias must be.* one input dimension",
        ),
    ],
)
def test_arguments_out_of_range_are_named(options: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=f"MultirateMask: {says}"):
        mrreg.MultirateMask(nn.Linear(3, 2), **options)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("p", 2, ValueError),
        ("p", NAN, ValueError),
        ("k", 0, ValueError),
        ("k", 2.5, TypeError),
        ("boost", -1, ValueError),
        ("rescale", None, TypeError),
    ],
)
def test_options_are_checked_when_they_are_changed(name: str, value: Any, kind: type[Exception]) -> None:
    mask = of(mrreg.MultirateMask(nn.Linear(3, 2), k=4))
    before = getattr(mask, name)
    with pytest.raises(kind, match=f"MultirateMask: {name} must be"):
        setattr(mask, name, value)
    assert getattr(mask, name) == before
    mask.boost = 2
    assert mask.boost == 2.0
    mask.boost = None
    assert mask.boost == 4


@pytest.mark.parametrize(
    ("module", "kind", "says"),
    [
        (torch.relu, TypeError, "module must be an nn.Module"),
        (nn.Linear, TypeError, r"Linear is a class: give an instance, Linear\(\.\.\.\)"),
        ((nn.Linear(2, 2), "report"), TypeError, "in a tuple: unpack it"),
        (nn.DataParallel(nn.Linear(2, 2)), ValueError, "without nn.DataParallel.*Mask the module inside"),
        (nn.ReLU(), ValueError, "module must be a module with a parameter to mask, got 'ReLU'"),
        (nn.LayerNorm((2, 3)), ValueError, "module must be a module with a parameter to mask, got 'LayerNorm'"),
        (nn.LazyLinear(2), RuntimeError, "no shape yet for 'bias', 'weight'. Run one forward first."),
        (nn.Embedding(3, 2, sparse=True), ValueError, "weight must be.*dense gradients, got 'sparse=True'"),
        (nn.EmbeddingBag(3, 2, sparse=True), ValueError, "weight must be.*dense gradients"),
        (mrreg.MultirateMask(nn.Linear(2, 2)), ValueError, "module must be without masks inside.*do not nest"),
        (nn.Sequential(mrreg.MultirateMask(nn.Linear(2, 2))), ValueError, "without masks inside, got '0'"),
    ],
)
def test_modules_that_cannot_be_masked_are_refused(module: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        mrreg.MultirateMask(module)


def test_complex_and_integer_parameters_are_refused_when_asked_for() -> None:
    layer = nn.Linear(2, 2, dtype=torch.complex64)
    for wanted in (None, ["weight"]):
        with pytest.raises(TypeError, match=r"weight must be a real.*got torch.complex64. Complex parameters cannot"):
            mrreg.MultirateMask(nn.Sequential(layer, nn.Linear(2, 2)), parameters=wanted and ["*.weight"])
    layer.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int32), requires_grad=False)
    with pytest.raises(TypeError, match=r"weight must be a real floating-point parameter, got torch.int32"):
        mrreg.MultirateMask(layer, parameters=["weight"])


def test_numbers_of_other_libraries_are_numbers() -> None:
    mask = of(mrreg.MultirateMask(nn.Linear(3, 2), np.float32(0.5), np.int64(4), boost=np.float64(2)))  # type: ignore[arg-type]
    assert (mask.p, mask.k, mask.boost) == (0.5, 4, 2.0)
    assert type(mask.k) is int


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


def test_boost_is_k_unless_given() -> None:
    mask = mrreg.MultirateMask(nn.Linear(3, 2), k=4)
    assert of(mask).boost == 4
    assert of(mrreg.MultirateMask(nn.Linear(3, 2), boost=0.5)).boost == 0.5
    assert "p=0.5, structure='weight', k=4, boost=None, rescale=False" in repr(mask)


def test_the_module_stays_itself() -> None:
    layer = nn.Linear(3, 2)
    mask = mrreg.MultirateMask(layer)
    assert mask is layer
    assert isinstance(mask, nn.Linear)
    assert isinstance(mask, mrreg.MultirateMask)
    assert not isinstance(nn.Linear(3, 2), mrreg.MultirateMask)
    assert not isinstance("mask", mrreg.MultirateMask)
    assert type(mask).__name__ == "Linear"
    assert type(mrreg.unwrap(mask)) is nn.Linear
    assert not isinstance(mask, mrreg.MultirateMask)


def test_a_shallow_copy_leaves_the_mask_with_its_original() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    expected = model(batch(0))
    assert torch.equal(nn.Sequential(copy.copy(model[0]), *model[1:])(batch(0)), expected)
    train(model, optimizer, 7)
    assert of(model[0]).root() is model[0]


def test_attributes_of_the_module_are_its_own() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.p = nn.Linear(4, 4), 7
            self.register_buffer("boost", torch.ones(4))

        def forward(self, x: torch.Tensor) -> Any:
            assert self.p == 7
            return self.k(x) * self.boost

    module: Any = mrreg.MultirateMask(Attention(), p=0.5, k=3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    mrreg.attach(optimizer, module)
    module(torch.ones(2, 4)).sum().backward()
    module.p = 8
    assert (module.p, of(module).p, of(module).k, of(module).boost) == (8, 0.5, 3, 3)
    with pytest.raises(AttributeError):
        _ = mrreg.MultirateMask(nn.Linear(2, 2)).p


def test_a_module_without_a_mask_has_no_options() -> None:
    modules: list[Any] = [nn.Linear(2, 2), mrreg.unwrap(mrreg.MultirateMask(nn.Linear(2, 2))), None]
    for module in modules:
        with pytest.raises(ValueError, match=r"MultirateMask.of: module must be one with a MultirateMask, got"):
            mrreg.MultirateMask.of(module)


def test_layers_of_a_container_are_reachable() -> None:
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    mask: Any = mrreg.MultirateMask(layers)
    assert mask[0] is layers[0]
    assert mask[-1] is layers[2]
    assert list(mask) == list(layers)
    assert len(mask) == 3
    assert repr(mask).startswith("Sequential(\n  mask(p=0.5")
    assert not isinstance(mask[:2], mrreg.MultirateMask)
    named: Any = mrreg.MultirateMask(nn.ModuleDict({"a": nn.Linear(3, 2)}))
    assert list(named) == ["a"]
    assert "a" in named


def test_parameters_have_the_names_of_the_state_dict() -> None:
    model, x = mlp(), batch(0)
    assert [name for name, _ in model.named_parameters()] == list(model.state_dict())
    other = mlp().eval()
    other.load_state_dict(dict(model.named_parameters()))
    assert same_bits(model, other)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    assert not torch.func.functional_call(model, zeros, x).any()
    assert torch.equal(torch.func.functional_call(model, model.state_dict(), x), model(x))
    before = model(x)
    model.load_state_dict(model.state_dict())
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("when", ["before attach", "after attach"])
def test_a_layer_that_is_parametrized_inside_its_mask_is_an_error_that_says_what_to_do(when: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if when == "after attach":
        mrreg.attach(optimizer, model)
    nn.utils.parametrizations.weight_norm(masks(model)[0])
    with pytest.raises(RuntimeError, match=r"no longer fits: 'weight' is gone\. .*mrreg\.unwrap"):
        model(batch(0)) if when == "after attach" else mrreg.attach(optimizer, model)


def test_mode_of_the_module_is_kept() -> None:
    assert not mrreg.MultirateMask(nn.Linear(3, 2).eval()).training
    frozen = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2).eval())
    assert mrreg.MultirateMask(frozen).training
    assert not frozen[1].training


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


def test_state_dict_is_the_plain_modules() -> None:
    model, plain = mlp(), plain_mlp()
    ours, theirs = model.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs)
    assert ours._metadata == theirs._metadata  # type: ignore[attr-defined]
    assert list(model[0].state_dict()) == ["weight", "bias"]
    assert list(model[0].state_dict(prefix="a.")) == ["a.weight", "a.bias"]
    assert model.state_dict(keep_vars=True)["0.weight"] is next(model.parameters())


@pytest.mark.parametrize(("nested", "assign"), [(False, True), (True, False)])
def test_state_dicts_go_both_ways(nested: bool, assign: bool) -> None:
    masked, plain = mlp(), plain_mlp()
    if nested:
        masked, plain = (nn.Sequential(nn.ModuleDict({"a": m}), nn.BatchNorm1d(2)) for m in (masked, plain))
    for source, target in ((masked, plain), (plain, masked), (masked, copy.deepcopy(masked))):
        for p in source.parameters():
            p.data.add_(1)
        saved = copy.deepcopy(source.state_dict())
        result = target.load_state_dict(saved, strict=True, assign=assign)
        assert not result.missing_keys
        assert not result.unexpected_keys
        assert same_bits(source, target)


def test_bits_follow_their_parameters_to_another_type() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    mask = masks(model)[0]
    slow = bits(mask)["weight"] == 0
    model.double()
    assert model(batch(0).double()).dtype == torch.float64
    assert torch.equal(bits(mask)["weight"] == 0, slow)


@pytest.mark.parametrize(("structure", "rescaled"), [("weight", False), ("input", True), ("output", True)])
def test_masks_of_whole_units_are_rescaled_by_default(structure: Any, rescaled: bool) -> None:
    assert of(mrreg.MultirateMask(nn.Linear(3, 2), structure=structure)).rescale is rescaled
    assert of(mrreg.MultirateMask(nn.Linear(3, 2), structure=structure, rescale=not rescaled)).rescale is not rescaled
