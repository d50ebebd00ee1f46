"""`LangevinSGD`: torch.optim.SGD plus noise of its own; what it saves, and what it refuses."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mrreg
from mrreg import LangevinSGD

pytestmark = pytest.mark.filterwarnings("ignore:.*no forward of the model was seen")  # gradients are put in by hand

SHAPES = ((3, 4), (5,), ())


def train(optimizer: torch.optim.Optimizer, steps: int, start: int = 0, *, gaps: bool = True) -> None:
    """Steps with fixed random gradients, some of them missing where gaps are wanted."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for t in range(start, start + steps):
        generator = torch.Generator().manual_seed(t)
        for i, p in enumerate(params):
            p.grad = None if gaps and (i + t) % 4 == 3 else torch.randn(p.shape, generator=generator, dtype=p.dtype)
        optimizer.step()


def new(dtype: torch.dtype = torch.float32, **options: Any) -> tuple[list[nn.Parameter], LangevinSGD]:
    generator = torch.Generator().manual_seed(99)
    params = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]
    groups = [{"params": params[:2]}, {"params": params[2:]}]
    return params, LangevinSGD(groups, **{"lr": 0.1, "momentum": 0.9, "temperature": 0.5, **options})


def noise(count: int = 1, **options: Any) -> Tensor:
    """The forces of some steps without gradients; the scale is 1 by default."""
    p = nn.Parameter(torch.zeros(1000))
    settings = {"lr": 2.0, "temperature": 1.0, "momentum": 0.0, **options}
    group = {"params": [p], **({"period": settings.pop("period")} if "period" in settings else {})}
    optimizer = LangevinSGD([group], **settings)
    forces = []
    for _ in range(count):
        p.grad = torch.zeros_like(p)
        before = p.detach().clone()
        optimizer.step()
        forces.append((before - p.detach()) / settings["lr"])
    return torch.stack(forces)


@pytest.mark.parametrize(
    ("foreach", "dtype", "options"),
    [
        (None, torch.float32, {"momentum": 0}),
        (True, torch.float64, {"momentum": 0.9}),
        (False, torch.bfloat16, {"momentum": 0.9, "weight_decay": 0.1}),
        (None, torch.complex64, {"momentum": 0, "weight_decay": 0.1, "maximize": True}),
        (True, torch.float32, {"momentum": 0.5, "maximize": True}),
    ],
)
def test_without_temperature_it_is_torch_sgd_bit_for_bit(
    foreach: bool | None, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    ours, optimizer = new(dtype, temperature=0, foreach=foreach, **options)
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    reference = torch.optim.SGD(theirs, lr=0.1, foreach=foreach, **options)
    for t in range(6):
        train(optimizer, 1, t)
        train(reference, 1, t)
        for p, q in zip(ours, theirs, strict=True):
            assert torch.equal(p, q)
            assert optimizer.state[p].keys() == {key for key, value in reference.state[q].items() if value is not None}
            assert all(torch.equal(value, reference.state[q][key]) for key, value in optimizer.state[p].items())
    assert optimizer.param_groups[0]["noise_steps"] == 0


def test_every_step_is_the_written_one() -> None:
    lr, mu, tau, decay = 0.1, 0.9, 0.5, 0.01
    theta = nn.Parameter(torch.ones(1000, dtype=torch.float64))
    optimizer = LangevinSGD([theta], lr=lr, momentum=mu, temperature=tau, weight_decay=decay)
    xi = nn.Parameter(torch.zeros(1000, dtype=torch.float64))
    source = LangevinSGD([xi], lr=2.0, temperature=1.0)
    expected, buffer = theta.detach().clone(), torch.zeros(1000, dtype=torch.float64)
    for t in range(5):
        theta.grad = torch.cos(theta.detach() + t)
        xi.grad, before = torch.zeros_like(xi), xi.detach().clone()
        source.step()
        draw = (before - xi.detach()) / 2
        force = theta.grad + decay * expected + math.sqrt(2 * (1 - mu) * tau / lr) * draw
        buffer = force if t == 0 else mu * buffer + force
        expected = expected - lr * buffer
        optimizer.step()
        torch.testing.assert_close(theta.detach(), expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(optimizer.state[theta]["momentum_buffer"], buffer, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("momentum", "period"), [(0.0, 5), (0.9, 1), (0.9, 5)])
def test_size_of_the_noise(momentum: float, period: int) -> None:
    force = noise(momentum=momentum, lr=0.3, temperature=0.7, period=period)
    expected = math.sqrt(2 * (1 - momentum) * 0.7 / (0.3 * period))
    assert force.std().item() == pytest.approx(expected, rel=0.08)
    assert abs(force.mean().item()) < 4 * expected / math.sqrt(1000)


@pytest.mark.parametrize("other", [{"seed": 1}, {"seed": 2**63}, {"period": 5}])
def test_streams_are_independent(other: dict[str, Any]) -> None:
    pair = torch.stack([noise().flatten(), noise(**other).flatten()])
    assert abs(torch.corrcoef(pair)[0, 1].item()) < 0.12


def test_steps_groups_and_parameters_draw_independently() -> None:
    draws = noise(4)
    params = [nn.Parameter(torch.zeros(1000)) for _ in range(4)]
    optimizer = LangevinSGD([{"params": params[:2]}, {"params": params[2:]}], lr=2.0, temperature=1.0)
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    every = torch.cat([draws, torch.stack([p.detach() / -2 for p in params])[1:]])
    assert (torch.corrcoef(every) - torch.eye(len(every))).abs().max().item() < 0.13


def test_groups_that_are_due_at_different_steps_draw_independently() -> None:
    fast, one, other = params = [nn.Parameter(torch.zeros(1000)) for _ in range(3)]
    noisy = LangevinSGD([{"params": [one], "phase": 0}, {"params": [other], "phase": 1}], lr=0.1, temperature=1.0)
    model = nn.ParameterList(params)
    optimizer = mrreg.Multirate([(torch.optim.SGD([fast], lr=0.1), 1), (noisy, 3)], model=model)
    for _ in range(2):
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
    directions = torch.stack([optimizer.state[p]["direction"] for p in (one, other)])
    assert abs(torch.corrcoef(directions)[0, 1].item()) < 0.13


def test_global_random_state_is_neither_read_nor_moved() -> None:
    before = torch.get_rng_state()
    first = noise(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1234)
    assert torch.equal(first, noise(3))


def test_a_tensor_lr_and_a_changed_lr_count() -> None:
    assert torch.equal(noise(lr=torch.tensor(2.0)), noise())
    params, optimizer = new(momentum=0.0, temperature=1.0, lr=2.0)
    optimizer.param_groups[0]["lr"] = 0.0
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert [torch.equal(p, q) for p, q in zip(params, before, strict=True)] == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_noise_in_other_dtypes(dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.zeros(4000, dtype=dtype))
    p.grad = torch.zeros_like(p)
    LangevinSGD([p], lr=2.0, temperature=1.0).step()
    parts = torch.view_as_real(p.detach()) if dtype.is_complex else p.detach()
    assert parts.float().std().item() == pytest.approx(2.0, rel=0.05)


def test_closure_is_called_once_with_gradients_on_and_its_loss_returned() -> None:
    params, optimizer = new()
    calls = []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        loss = sum((p.square().sum() for p in params), torch.zeros(()))
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        return loss.item()

    assert optimizer.step(closure) > 0
    assert calls == [True]


NUMBER = "LangevinSGD: {} must be a number, {}, got {}."
NOT_NEGATIVE = "finite and at least 0"

REFUSED: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, NUMBER.format("lr", NOT_NEGATIVE, "'0.1'"), {"lr": "0.1"}),
    (TypeError, NUMBER.format("lr", NOT_NEGATIVE, "True"), {"lr": True}),
    (ValueError, "LangevinSGD: lr must be finite and at least 0, got inf.", {"lr": math.inf}),
    (ValueError, "LangevinSGD: lr must be finite and at least 0, got nan.", {"lr": torch.tensor(math.nan)}),
    (ValueError, "LangevinSGD: momentum must be in [0, 1), got 1.", {"momentum": 1}),
    (ValueError, "LangevinSGD: temperature must be finite and at least 0, got -1.", {"temperature": -1}),
    (TypeError, NUMBER.format("weight_decay", NOT_NEGATIVE, "None"), {"weight_decay": None}),
    (TypeError, NUMBER.format("lr", NOT_NEGATIVE, "tensor([0.1000, 0.2000])"), {"lr": torch.tensor([0.1, 0.2])}),
    (TypeError, "LangevinSGD: seed must be a whole number, at least 0, got 0.5.", {"seed": 0.5}),
    (ValueError, "LangevinSGD: seed must be a whole number, at least 0, got -1.", {"seed": -1}),
]


@pytest.mark.parametrize(("kind", "message", "options"), REFUSED)
def test_refused_options(kind: type[Exception], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        LangevinSGD([nn.Parameter(torch.zeros(1))], **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_and_with_parameters_on_two_devices() -> None:
    for foreach in (None, True, False):
        p = nn.Parameter(torch.linspace(-1, 1, 5000, device="cuda"))
        q = nn.Parameter(p.detach().clone())
        pair = (
            LangevinSGD([p], lr=0.1, momentum=0.9, foreach=foreach),
            torch.optim.SGD([q], lr=0.1, momentum=0.9, foreach=foreach),
        )
        for _ in range(3):
            p.grad, q.grad = p.detach().sin(), q.detach().sin()
            for optimizer in pair:
                optimizer.step()
        assert torch.equal(p, q)
    both = [nn.Parameter(torch.zeros(5000, device=device)) for device in ("cpu", "cuda")]
    noisy = LangevinSGD(both, lr=2.0, temperature=1.0)
    for p in both:
        p.grad = torch.zeros_like(p)
    state = torch.cuda.get_rng_state()
    noisy.step()
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert all(p.std().item() == pytest.approx(2.0, rel=0.05) for p in both)
    assert abs(torch.corrcoef(torch.stack([p.detach().cpu() for p in both]))[0, 1].item()) < 0.05
