"""Which forwards are masked: those in training mode that a step can follow; what traces them is refused."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import attached, batch, masks, mlp, of
from helpers.thin import mask_of, thin_net
from torch import Tensor, nn
from torch.autograd import forward_ad
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


jacobian: Any = torch.autograd.functional.jacobian
hessian: Any = torch.autograd.functional.hessian
TRANSFORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "grad": (lambda f, x: torch.func.grad(lambda z: f(z).sum())(x), lambda f, x: jacobian(f, x).sum((0, 1))),
    "vmap of grad": (
        lambda f, x: torch.func.vmap(torch.func.grad(lambda z: f(z[None]).sum()))(x),
        lambda f, x: jacobian(f, x).sum((0, 1)),
    ),
    "jacrev": (lambda f, x: torch.func.jacrev(f)(x), jacobian),
    "jacfwd": (lambda f, x: torch.func.jacfwd(f)(x), jacobian),
    "hessian": (
        lambda f, x: torch.func.hessian(lambda z: f(z).sum())(x),
        lambda f, x: hessian(lambda z: f(z).sum(), x),
    ),
    "vjp": (
        lambda f, x: torch.func.vjp(f, x)[1](f(x))[0],
        lambda f, x: (f(x).flatten() @ jacobian(f, x).flatten(0, 1).flatten(1)).view_as(x),
    ),
    "jvp": (lambda f, x: torch.func.jvp(f, (x,), (x,))[1], lambda f, x: torch.tensordot(jacobian(f, x), x, 2)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # by torch's own forward derivatives, when they are first imported
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", MODELS)
def test_transforms_of_torch_func_differentiate_the_masked_forward(name: str, transform: str) -> None:
    model, _, x = _driven(name)
    for module in model.modules():  # no transform takes statistics that move
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    found, expected = (each(model, x) for each in TRANSFORMS[transform])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_backward_pass_after_the_step_is_refused_as_by_torch(name: str) -> None:
    model, mask, x = _driven(name)
    first, second = model(x).sum(), model(x).sum()
    first.backward()
    mask.optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()


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


@pytest.mark.parametrize(
    ("layer", "x"), [(Projected(4, 4), torch.ones(2, 4)), (nn.Embedding(4, 4, max_norm=0.1), torch.arange(4))]
)
def test_a_write_to_a_masked_parameter_in_the_forward_is_refused(layer: nn.Module, x: Tensor) -> None:
    layer, _optimizer = attached(layer)
    with pytest.raises(RuntimeError, match=r"writes to 'weight'.*after the optimizer's step"):
        layer(x)
    layer.eval()(x)
