"""Which forwards are masked: those in training mode that a step can follow; what traces them is refused."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import batch, bits, masks, mlp, of, train
from helpers.thin import mask_of, thin_net
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.optim.swa_utils import update_bn
from torch.utils.checkpoint import checkpoint

import mrreg


def _mlp() -> tuple[nn.Module, Any]:
    model = mlp(dtype=torch.float64)
    return model, of(masks(model)[0])


def _thin() -> tuple[nn.Module, Any]:
    model = thin_net()
    return model, mask_of(model)


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {"mask": _mlp, "thin": _thin}


def _driven(name: str) -> tuple[nn.Module, Any, Tensor]:
    model, mask = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mask.optimizer = optimizer  # lives as long
    mrreg.attach(optimizer, model)
    assert mask.masking
    return model, mask, batch(0, torch.float64)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_training_forward_without_gradients_is_whole(name: str, off: Any) -> None:
    model, mask, x = _driven(name)
    for module in model.modules():  # the statistics of a batch are those of the whole model too
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 0.0
    masked = model(x)
    with off():
        whole = model(x)
    for each in [mask] if name == "thin" else map(of, masks(model)):
        each.detach()
    with torch.no_grad():
        assert torch.equal(model(x), whole)
    assert not torch.allclose(masked, whole)


class Half(nn.Module):
    """Computes its first layer without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 5, bias=False), nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.one(x)
        y: Tensor = self.two(h)
        return y


def test_a_part_of_a_masked_forward_without_gradients_is_masked_with_it() -> None:
    module = mrreg.MultirateMask(Half(), p=0.5, k=3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    mrreg.attach(optimizer, module)
    weights = {name: p.detach() * (bits(module)[name] != 0) for name, p in module.named_parameters()}
    torch.testing.assert_close(module(batch(0)), batch(0) @ weights["one.weight"].T @ weights["two.weight"].T)


def test_statistics_that_are_estimated_anew_are_those_of_the_whole_model() -> None:
    torch.manual_seed(0)
    layers = [mrreg.MultirateMask(nn.Linear(6, 8), structure="output"), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    train(model, optimizer, 1)
    update_bn([batch(t) for t in range(5)], model)
    told: Any = model[1].running_var
    inputs = torch.stack([nn.functional.linear(batch(t), *model[0].parameters()) for t in range(5)])
    torch.testing.assert_close(told, inputs.var(1).mean(0))


def test_the_first_pass_of_a_reentrant_checkpoint_is_masked() -> None:
    model, _, x = _driven("mask")
    again = checkpoint(model, x.requires_grad_(), use_reentrant=True)
    assert torch.equal(again, model(x))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")  # torch's own
def test_forward_derivatives_need_no_graph() -> None:
    model, _, x = _driven("mask")
    expected = model(x)
    dual: Any = forward_ad
    with torch.no_grad(), forward_ad.dual_level():
        made = dual.unpack_dual(model(dual.make_dual(x, torch.ones_like(x))))
    assert torch.equal(made.primal, expected)
    assert made.tangent is not None


TRACES: list[Any] = [torch.jit.trace]
if hasattr(torch.compiler, "is_exporting"):  # an older torch does not tell an export from a compilation
    TRACES.append(lambda model, x: torch.export.export(model, (x,)))


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:Converting a tensor")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("trace", TRACES)
def test_a_trace_of_a_masked_forward_is_refused(name: str, trace: Any) -> None:
    model, _, x = _driven(name)
    with pytest.raises(RuntimeError, match=r"would leave out the same entries for ever. Call eval\(\) first"):
        trace(model, x)
    traced = trace(model.eval(), x)
    call = traced.module() if hasattr(traced, "module") else traced
    assert torch.allclose(call(x), model(x))


def test_a_mask_that_leaves_nothing_says_so() -> None:
    with pytest.warns(mrreg.NoEffectWarning, match="MultirateMask: with p=1 no weight is present") as caught:
        layer = mrreg.MultirateMask(nn.Linear(2, 2), p=1)
    assert caught[0].filename == __file__
    with pytest.warns(mrreg.NoEffectWarning, match="with p=1"):
        of(layer).p = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of(layer).p = 0.99


class Projected(nn.Linear):
    """Keeps its weight small, in the forward."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return super().forward(input)


def test_a_write_to_a_masked_parameter_in_the_forward_is_refused() -> None:
    layer = mrreg.MultirateMask(Projected(4, 4), p=0.5, k=2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    mrreg.attach(optimizer, layer)
    with pytest.raises(RuntimeError, match=r"writes to 'weight'.*after the optimizer's step"):
        layer(torch.ones(2, 4))
    layer.eval()(torch.ones(2, 4))


def test_the_handle_of_masks_that_were_taken_out_drives_nothing() -> None:
    layer = mrreg.MultirateMask(nn.Linear(4, 4), p=0.5, k=2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    handle = mrreg.attach(optimizer, layer)
    mrreg.unwrap(layer)
    assert repr(handle) == "Attachment (drives nothing)"
