"""The public `thin`: its arguments, its report, and that nothing but the model's class changes."""

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mrreg
from mrreg.thinning.report import ThinReport


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))


X = torch.randn(4, 8)


def test_it_says_what_is_dropped_and_what_that_saves() -> None:
    model = network()
    thin, report = mrreg.thin(model, p=0.5, k=5, example_inputs=X)
    assert thin is model
    assert isinstance(model, nn.Sequential)
    assert [(name, entry.kept, entry.units) for name, entry in report.items() if entry.admitted] == [
        ("0", 32, 64),
        ("3", 16, 32),
    ]
    plain = 2 * 4 * (8 * 64 * 2 + 64 * 32 * 3 + 32 * 2 * 3)  # the inputs need no gradient
    masked = 2 * 4 * (8 * 32 * 2 + 32 * 16 * 3 + 16 * 2 * 3)
    assert report.masked_share == masked / plain
    assert report.cycle_share == pytest.approx((1 + 4 * masked / plain) / 5)
    assert "2 of 4 groups lose units" in str(report)
    assert str(report).splitlines()[-1].split()[:4] == ["5", "none", "whole", "they"]


def test_the_same_model_gives_the_same_report_in_any_mode() -> None:
    torch.manual_seed(1)
    one = mrreg.thin(network(), example_inputs=X)[1]
    torch.manual_seed(2)
    model = network()
    with torch.inference_mode():
        two = mrreg.thin(model, example_inputs=X)[1]
    assert str(one) == str(two)


class Sloppy(nn.Module):
    """Everything that a forward may leave behind."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.drop, self.two = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 2)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.calls, self.seen, self.last = 0, [torch.ones(1)], torch.ones(1)

    def forward(self, x: Tensor, scale: float = 1) -> Tensor:
        self.calls += 1
        self.steps = self.steps + 1
        self.seen.append(x)
        self.last = self.one(x) * (random.random() + np.random.rand() + torch.rand(()))  # noqa: NPY002
        return self.two(self.drop(self.norm(self.last))) * scale  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:thin. the model still has dropout")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", [mrreg.thin, mrreg.swap_dropout])
def test_following_a_forward_leaves_nothing_behind(call: Any, training: bool) -> None:
    model = Sloppy().train(training)
    model.drop.eval()
    model(torch.randn(3, 8)).sum().backward()  # caches activations with a history
    model.one.weight.requires_grad_(False)
    heard: list[int] = []
    model.one.register_forward_hook(lambda *_: heard.append(1))
    hooks, state = dict(model.one._forward_hooks), copy.deepcopy(model.state_dict())
    parameters, grads = dict(model.named_parameters()), {n: p.grad for n, p in model.named_parameters()}
    old = model.calls, len(model.seen), model.last
    inputs = torch.randn(1, 8, requires_grad=True) * 1
    before = inputs.clone()
    generators = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    call(model, example_inputs=[inputs, 2.0] if training else {"x": inputs})
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (random.getstate(), str(np.random.get_state())) == generators[1:]  # noqa: NPY002
    assert (model.calls, len(model.seen), model.last, heard) == (*old, [])  # copies of hooks are called
    assert dict(model.one._forward_hooks) == hooks
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)
    plain = dict(mrreg.unwrap(model).named_parameters())
    assert all(plain[name] is p and p.grad is grads[name] for name, p in parameters.items())
    assert not model.one.weight.requires_grad
    assert torch.equal(inputs, before)
    assert (model.training, model.norm.training, model.drop.training) == (training, training, False)
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_a_report_can_be_saved_and_given_back(tmp_path: Path) -> None:
    model = network()
    _, report = mrreg.thin(copy.deepcopy(model), p=0.25, k=5, example_inputs=X)
    report.save(tmp_path / "plan.pt")
    loaded = ThinReport.load(tmp_path / "plan.pt")
    assert str(loaded) == str(report)
    _, again = mrreg.thin(model, k=10, plan=loaded)
    assert again.cycle_share < report.cycle_share
    assert [group.kept for group in again.groups] == [group.kept for group in report.groups]
    for one, two in zip(again.groups, report.groups, strict=True):
        assert all(torch.equal(a.indices, b.indices) for a, b in zip(one.slots, two.slots, strict=True))


def test_a_plan_for_another_model_is_refused() -> None:
    _, report = mrreg.thin(network(), example_inputs=X)
    other = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Dropout(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 2))
    with pytest.raises(ValueError, match=r"thin: plan must be one for this model, got .*In all 5 differ") as caught:
        mrreg.thin(other, plan=report)
    assert "'0.weight': 'shape (64, 8), here shape (48, 8)'" in str(caught.value)
    assert not any("forward" in vars(module) or "_thin_mask" in vars(module) for module in other.modules())
    with pytest.raises(TypeError, match="thin: plan must be the ThinReport of an earlier call"):
        mrreg.thin(other, plan="plan.pt")  # type: ignore[arg-type]


class Heads(nn.Module):
    """Attention, of which the number of heads is in no shape."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, heads, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0])  # type: ignore[no-any-return]


def test_a_plan_knows_classes_and_counts_that_are_in_no_shape() -> None:
    _, report = mrreg.thin(Heads(4), example_inputs=torch.randn(2, 3, 16))
    with pytest.raises(
        ValueError, match=r"got \{'attention': 'MultiheadAttention .*num_heads=4 .*here .*num_heads=2 .*'\}"
    ):
        mrreg.thin(Heads(2), plan=report)
    other = network()
    _, report = mrreg.thin(network(), example_inputs=X)
    other[1] = nn.Tanh()
    with pytest.raises(ValueError, match=r"\{'1': 'ReLU, here Tanh'\}\. In all 1 differ\. Give example_inputs instead"):
        mrreg.thin(other, plan=report)


@pytest.mark.parametrize("boost", [None, 1, 1.0])
def test_cycles_of_one_step_warn(boost: float | None) -> None:
    def attach(boost: float | None, joint: bool) -> None:
        model, _ = mrreg.thin(network(), k=1, boost=boost, example_inputs=X)
        mrreg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, joint=joint)

    with pytest.warns(mrreg.NoEffectWarning, match="k=1 and boost=1 every step is a joint one") as caught:
        attach(boost, True)
    assert caught[0].filename == __file__
    attach(2, True)
    attach(boost, False)


def test_models_without_values_need_a_plan() -> None:
    with pytest.raises(
        RuntimeError, match=r"thin: the model has no values for '0.bias'.*on the meta device\. Search on a"
    ):
        mrreg.thin(network().to("meta"), example_inputs=X)
    _, report = mrreg.thin(network(), p=0.5, example_inputs=X)
    model, _ = mrreg.thin(network().to("meta"), plan=report)
    model.to_empty(device="cpu").load_state_dict(network().state_dict())
    model[1], model[2] = nn.Tanh(), nn.Identity()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    model(X).sum().backward()
    assert model.get_parameter("0.weight").grad.eq(0).all(1).sum() == 32  # type: ignore[union-attr]


def test_keras_layers_are_refused() -> None:
    layer = type("Dense", (nn.Linear,), {"__module__": "keras.src.layers"})(8, 16)
    with pytest.raises(TypeError, match=r"thin: model must be made of torch's own layers, got '1 of Keras'"):
        mrreg.thin(nn.Sequential(nn.Linear(8, 8), layer), example_inputs=X)
    with pytest.raises(
        TypeError, match=r"MultirateMask: module must be made of torch's own layers, got 'Dense of Keras'"
    ):
        mrreg.MultirateMask(layer, p=0.5)


def test_nothing_to_drop_warns_and_can_be_attached() -> None:
    model = network()
    with pytest.warns(mrreg.NoEffectWarning, match="no group of units loses any") as caught:
        _, report = mrreg.thin(model, p=0.0, example_inputs=X)
    assert caught[0].filename == __file__
    assert report.masked_share == 1.0
    mrreg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_cannot_be_done_says_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"thin: example_inputs must be what one training forward takes, got None\. Give"
    ):
        mrreg.thin(network())
    with pytest.raises(TypeError, match="thin: example_inputs must be a tensor, a tuple of arguments or a mapping"):
        mrreg.thin(network(), example_inputs="x")
    with pytest.raises(
        RuntimeError, match=r"thin: the model has no shape yet for .*'first\.weight'\. Run one forward first"
    ):
        mrreg.thin(Lazy(), example_inputs=X)
    with pytest.raises(TypeError, match=r"thin: model must be an nn.Module"):
        mrreg.thin("model", example_inputs=X)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="thin: k must be a whole number, at least 1, got 0"):
        mrreg.thin(network(), k=0, example_inputs=X)
    model = mrreg.thin(network(), example_inputs=X)[0]
    with pytest.raises(RuntimeError, match="thin: the model is thin already"):
        mrreg.thin(model, example_inputs=X)
    mrreg.thin(mrreg.unwrap(model), example_inputs=X)


def test_a_forward_that_fails_says_that_the_inputs_were_ours() -> None:
    failed = (
        r"thin: the forward failed on example_inputs={}, called as model\({}\): {}: .*Give what one training forward"
    )
    x, labels = torch.randn(2, 9), torch.zeros(2)
    with pytest.raises(ValueError, match=failed.format(r"Tensor\(2, 9\)", "example_inputs", "RuntimeError")):
        mrreg.thin(network(), example_inputs=x)
    with pytest.raises(
        ValueError, match=failed.format(r"\(Tensor\(2, 9\), Tensor\(2,\)\)", r"\*example_inputs", "TypeError")
    ):
        mrreg.thin(network(), example_inputs=(x, labels))
    with pytest.raises(ValueError, match=failed.format(r"\{'x': Tensor.*\}", r"\*\*example_inputs", "TypeError")):
        mrreg.thin(network(), example_inputs={"x": x})


def test_bfloat16_models_and_frozen_layers() -> None:
    model = network().bfloat16()
    model[0].requires_grad_(False)
    _, report = mrreg.thin(model, example_inputs=X.bfloat16())
    assert len(report.groups) == 2
    assert model[0].weight.dtype == torch.bfloat16


def test_layers_with_a_mask_of_their_own_are_left_to_it() -> None:
    layers = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2)]
    layers[0] = mrreg.MultirateMask(layers[0], p=0.5)
    model = nn.Sequential(*layers)
    _, report = mrreg.thin(model, example_inputs=X)
    assert [group.name for group in report.groups] == ["2", "4"]
    assert report["0"].reason == "'0' has a MultirateMask of its own"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    for _ in range(6):
        model(X).sum().backward()
        optimizer.step()


def test_embeddings_with_sparse_gradients_keep_their_units() -> None:
    """No optimizer can hold single entries of them."""
    model = nn.Sequential(nn.Embedding(9, 16, sparse=True), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    words = torch.tensor([[1, 2]])
    _, report = mrreg.thin(model, example_inputs=words)
    assert [group.name for group in report.groups] == ["1"]
    assert report["0"].reason == "'0' has sparse gradients"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    model(words).sum().backward()
    optimizer.step()


def test_a_report_lists_what_there_is() -> None:
    _, report = mrreg.thin(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), example_inputs=torch.randn(2, 4))
    with pytest.raises(KeyError, match="no group 'nope'; there is: '0'"):
        report["nope"]
    assert "nope" not in report
    assert repr(report) == str(report)
