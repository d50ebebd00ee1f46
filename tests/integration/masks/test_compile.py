"""torch.compile: one graph with masks and one without, none later, the same numbers as eager."""

from typing import Any

import pytest
import torch
from helpers.masks import attached, batch, bits, loss_of, masks, mlp, of, same_bits, train
from helpers.thin import thin_net
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import mrreg

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "make", [lambda: mlp(structure="output", rescale=True), lambda: thin_net(torch.float32, boost=None)]
)
def test_exactly_two_graphs_over_cycles(make: Any) -> None:
    eager, model = make(), make()
    counter = CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(model, backend=counter, fullgraph=True)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, eager))
    mrreg.attach(ours, model)
    mrreg.attach(theirs, eager)
    graphs = []
    for t in range(4):
        assert train(compiled, ours, range(t, t + 1)) == train(eager, theirs, range(t, t + 1))
        graphs.append(counter.frame_count)
    assert graphs == [1, 1, 2, 2]
    assert same_bits(model, eager)


def test_inductor_holds_slow_entries_too() -> None:
    """Their weight counts as zero though it is NaN, and they get no gradient though it is inf."""
    torch.manual_seed(0)
    linear = nn.Linear(40, 30, bias=False, dtype=torch.bfloat16)
    mask, _optimizer = attached(linear)
    weight, slow = linear.weight, bits(mask)["weight"] == 0
    weight.data[slow] = float("nan")
    x = torch.randn(8, 40, dtype=torch.bfloat16)
    compiled: Any = torch.compile(mask)
    out = compiled(x)
    assert torch.allclose(out, mask(x), rtol=1e-2)
    out.backward(torch.full_like(out, float("inf")))
    assert weight.grad is not None
    assert not weight.grad[slow].any()
    assert not weight.grad[~slow].isfinite().any()


def test_a_compiled_model_can_be_attached_and_evaluated() -> None:
    model = mlp()
    compiled = torch.compile(model, backend="aot_eager")
    assert isinstance(compiled, nn.Module)
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    mrreg.attach(optimizer, compiled)
    train(compiled, optimizer, 4)
    compiled.eval()
    with torch.no_grad():
        dense = compiled(batch(0))
    for mask in masks(model):
        of(mask).detach()
    assert torch.equal(model(batch(0)), dense)


def test_transforms_inside_a_compiled_function() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    parameters, x = dict(model.named_parameters()), batch(0)

    def loss(values: dict[str, Any], x: torch.Tensor) -> Any:
        return torch.vmap(lambda row: torch.func.functional_call(model, values, (row,)))(x).square().sum()

    def each(x: torch.Tensor) -> Any:
        return torch.func.grad(loss)(parameters, x)

    compiled = torch.compile(each, backend="aot_eager")(x)
    assert all(torch.allclose(compiled[name], gradient, atol=1e-6) for name, gradient in each(x).items())


def test_a_compiled_optimizer_step() -> None:
    model, eager = mlp(), mlp()
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, eager))
    mrreg.attach(ours, model)
    mrreg.attach(theirs, eager)
    step = torch.compile(ours.step, backend="aot_eager")
    for t in range(4):
        ours.zero_grad()
        loss_of(model(batch(t))).backward()  # type: ignore[no-untyped-call]
        step()
        train(eager, theirs, range(t, t + 1))
    assert ours.param_groups[0]["mask_clock"] == 4
    assert all(torch.allclose(p, q, atol=1e-6) for p, q in zip(model.parameters(), eager.parameters(), strict=True))


class Repeated(nn.Module):
    """Applies one layer three times, under three names."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(4, 4)
        self.layers = nn.ModuleList([layer, layer, layer])
        self.tied = nn.Linear(4, 4)
        self.tied.weight = layer.weight

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.layers, self.tied):
            x = torch.tanh(layer(x))
        return x


def test_a_layer_under_several_names_keeps_its_parameter() -> None:
    model, _optimizer = attached(Repeated())
    before = dict(model.named_parameters(remove_duplicate=False))
    x = torch.randn(2, 4)
    expected = model(x)
    compiled: Any = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(x), expected)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert after.keys() == before.keys()
    assert all(after[name] is p for name, p in before.items())
