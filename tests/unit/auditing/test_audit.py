"""What the audit says of small models, and that it leaves them as they were."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mrreg

pytestmark = pytest.mark.usefixtures("quick_audit")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 8), nn.Linear(8, 2)
    )


def audited(fast: Any = "5", model: nn.Module | None = None, **options: Any) -> mrreg.Audit:
    return mrreg.audit(network() if model is None else model, fast=fast, example_inputs=torch.randn(4, 6), **options)


def test_parts_are_counted() -> None:
    model = network()
    model[0].requires_grad_(False)
    parts = audited(model=model)["parts"]
    assert {name: part["parameters"] for name, part in parts.items()} == {"fast": 18, "slow": 16 + 72, "frozen": 56}


def test_what_an_optimizer_has_switched_off_is_no_frozen_part() -> None:
    model = network()
    optimizer = mrreg.MultirateSGD(model, lr=0.1, k=3, fast="5")
    expected = audited(model=model)["parts"]
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    for _ in range(2):  # between steps, and after a forward
        assert {name: part["parameters"] for name, part in audited(model=model)["parts"].items()} == {
            name: part["parameters"] for name, part in expected.items()
        }
        model(torch.randn(4, 6))
    optimizer.step()
    model(torch.randn(4, 6))
    assert not model[0].weight.requires_grad


def test_flops_of_the_backward_are_those_of_what_gets_a_gradient() -> None:
    flops = audited()["flops"]
    ahead = 2 * 4 * (6 * 8 + 8 * 8 + 8 * 2)
    assert flops == {"forward": ahead, "backward": 2 * ahead - 2 * 4 * 6 * 8, "fast_backward": 2 * 4 * 8 * 2}


def test_early_fast_layer_is_named_with_what_it_forces() -> None:
    report = audited(["0.bias", "5"])
    assert report["reached"] == ["1", "4"]
    assert report["reached_share"] == 1.0
    assert report["forced_by"] == ["0.bias"]
    assert any("'0.bias' is fast but lies early" in each for each in report["advice"])


class Token(nn.Module):
    """A parameter of the model itself before its layers, an attention whose projection is used without a call."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.body = nn.Linear(6, 2), nn.MultiheadAttention(6, 2)
        self.token = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token
        return self.fast(self.body(x, x, x)[0])  # type: ignore[no-any-return]


def test_a_parameter_of_no_layer_is_named_and_what_is_used_without_a_call() -> None:
    report = audited(["token", "fast"], Token())
    assert report["reached"] == ["body", "body.out_proj"]
    assert report["forced_by"] == ["token"]
    assert audited("fast", Token())["reached"] == []


def test_layers_of_the_slow_part_are_listed() -> None:
    assert audited()["batch_norm"] == ["1"]
    assert audited(["1", "4", "5"])["batch_norm"] == []


def test_dict_is_plain_and_the_text_shows_it() -> None:
    report = audited()
    assert json.loads(json.dumps(report)) == report
    assert [each["k"] for each in report["periods"]] == [2, 3, 5, 10]
    sizes = report["bytes"]
    for each in report["periods"]:
        assert sizes["fast"] < each["mean_bytes"] < sizes["full"] == each["peak_bytes"]
    said = str(report)
    assert "Times faster" in said
    assert "mrreg.batch_norm" in said
    assert "per_gradient" in said


def test_speedup_is_of_the_seconds_in_the_report() -> None:
    report = audited()
    report["seconds"] = {
        "full": {"forward": 2.0, "backward": 4.0},
        "fast": {"forward": 2.0, "backward": 0.5},
    }
    assert report.speedup(5) == pytest.approx(5 * 6 / (6 + 4 * 2.5))
    assert report.speedup(1) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"^Audit.speedup: k must be a whole number, at least 1, got 0"):
        report.speedup(0)


@pytest.mark.parametrize("forward", [1.0, 0.25, 0.0])
def test_no_speedup_is_predicted_beyond_what_backward_passes_cost(forward: float) -> None:
    report = audited()
    report["seconds"] = {
        "full": {"forward": 1.0, "backward": 2.0},
        "fast": {"forward": forward, "backward": 0.0},  # timings that are off
    }
    assert report.speedup(10**6) == pytest.approx(3, rel=1e-4)


def everything(model: nn.Module) -> list[object]:
    """All that an audit could change."""
    return [
        [(name, value.clone()) for name, value in model.state_dict().items()],
        [
            (id(p), p.requires_grad, None if p.grad is None else (id(p.grad), p.grad.clone()))
            for p in model.parameters()
        ],
        [(m.training, dict(m._buffers), dict(m._forward_hooks), dict(m._backward_hooks)) for m in model.modules()],
        torch.get_rng_state(),
        random.getstate(),
        torch.is_grad_enabled(),
    ]


def flat(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from flat(each)
    elif isinstance(value, dict):
        yield from flat(list(value.items()))
    else:
        yield value.tolist() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("prepare", [nn.Module.train, nn.Module.eval])
def test_model_is_as_it_was(prepare: Callable[[nn.Module], nn.Module]) -> None:
    model = network()
    prepare(model)
    model[1].eval()
    model[4].weight.requires_grad_(False)
    model[5](torch.ones(1, 8)).sum().backward()
    inputs = torch.randn(4, 6, requires_grad=True)
    stepped: list[Tensor] = []
    (weight, *_) = model.parameters()
    handle = weight.register_post_accumulate_grad_hook(stepped.append)  # type: ignore[no-untyped-call]
    draws = model.register_forward_pre_hook(lambda *_: random.seed(1))
    before = list(flat(everything(model)))
    with torch.no_grad():
        mrreg.audit(model, fast="5", example_inputs=inputs)
    assert list(flat(everything(model))) == before
    draws.remove()
    assert inputs.grad is None
    assert not stepped
    assert list((weight._post_accumulate_grad_hooks or {}).values()) == [stepped.append]
    handle.remove()


def test_model_is_as_it_was_after_an_error() -> None:
    model = network()
    before = list(flat(everything(model)))
    with pytest.raises(RuntimeError, match="shape") as raised:
        mrreg.audit(model, fast="5", example_inputs=torch.ones(4, 5))
    assert list(flat(everything(model))) == before
    assert "audit: raised by the forward" in "".join(getattr(raised.value, "__notes__", raised.value.args))


def test_no_gradient_is_reported_by_name() -> None:
    model = network()
    model[4].register_module("spare", nn.Linear(6, 6))
    report = audited("5", model)
    assert report["parts"]["slow"]["without_gradient"] == ["4.spare.weight", "4.spare.bias"]
    with pytest.raises(ValueError, match=r"audit: fast must be a part that the loss depends on"):
        audited("4.spare", model)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"model": 3}, TypeError, "audit: model must be an nn.Module"),
        ({"model": nn.Linear}, TypeError, r"audit: model must be .* Linear is a class: give an instance"),
        ({"fast": "layr"}, ValueError, "audit: fast must be the name"),
        ({"fast": "*"}, ValueError, "audit: fast must be some of the parameters"),
        ({"loss_fn": nn.MSELoss}, TypeError, "audit: loss_fn must be a function, or None, got <class"),
        ({"loss_fn": 3}, TypeError, "audit: loss_fn must be a function"),
        ({"loss_fn": lambda output: output}, ValueError, "loss_fn must be a function whose result is one number"),
        ({"loss_fn": lambda output: output.detach().sum()}, ValueError, "audit: model must be a model whose loss has"),
        ({"model": nn.Sequential(nn.Linear(6, 2).requires_grad_(False), nn.Linear(2, 2)), "fast": "0"}, ValueError,
         "audit: fast must be a choice of at least one parameter with requires_grad=True"),
    ],
)  # fmt: skip
def test_errors(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        audited(**options)


def test_output_without_a_number_needs_a_loss() -> None:
    model = network()
    model.register_forward_hook(lambda _, __, output: output.argmax(1))
    with pytest.raises(ValueError, match="audit: loss_fn must be given"):
        audited(model=model)
