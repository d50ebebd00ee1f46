"""Thin models beside averages, mixed precision, clipping, slow parts, compilation, copies and threads."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from helpers.thin import (
    ADAM,
    GROUPS,
    MOMENTUM,
    TOLERANCE,
    Watched,
    attached,
    batch,
    mask_of,
    net,
    same,
    thin_net,
    train,
)
from helpers.thin_oracle import LiteralTraining, absent_entries, loss_of
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import mrreg

K = 3


def literal() -> LiteralTraining:
    return LiteralTraining(net(), GROUPS, MOMENTUM, K, K, True)


def test_an_average_is_that_of_whole_weights_and_is_undriven() -> None:
    model, optimizer = attached(MOMENTUM)
    oracle = literal()
    average: Any = get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"multi_avg_fn": average, "use_buffers": True}
    ours, expected = AveragedModel(model, **options), AveragedModel(oracle.model, **options)
    for t in range(7):
        train(model, optimizer, [t])
        oracle.step(batch(t))
        ours.update_parameters(model)
        expected.update_parameters(oracle.model)
        same(ours, expected)
        torch.testing.assert_close(ours.eval()(batch(9)), expected.eval()(batch(9)), **TOLERANCE)
        assert not mask_of(ours.module).attached
    update_bn([batch(t) for t in range(3)], ours.train())
    update_bn([batch(t) for t in range(3)], expected.train())
    same(ours, expected)
    train(model, optimizer, [7])
    oracle.step(batch(7))
    same(model, oracle.model)


def test_autocast() -> None:
    """Rounds as the literal loop does, to bfloat16's precision; what is absent does not change by a bit."""
    model, optimizer = attached(ADAM, dtype=torch.float32)
    oracle = LiteralTraining(net(torch.float32), GROUPS, ADAM, K, K, True)
    for t in range(2 * K):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        x = batch(t, torch.float32)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            expected = oracle.step(x)
            output = model(x)
            loss = loss_of(output)
        assert output.dtype == torch.bfloat16
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        torch.testing.assert_close(loss.detach().float(), expected.float(), rtol=0.02, atol=0.02)
        same(model, oracle.model, rtol=0.02, atol=0.02)
        for name, gone in absent_entries(model, GROUPS, t // K).items() if t % K < K - 1 else ():
            assert torch.equal(model.state_dict()[name][gone], before[name][gone])


def test_accumulation_with_a_scaler_and_clipping() -> None:
    """As nanoGPT does: scaled losses of parts of the batch, unscaled, clipped, stepped."""
    model, optimizer = attached(MOMENTUM)
    oracle = literal()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    oracle.optimizer.register_step_pre_hook(lambda *_: _clip(oracle.model))
    for each in (model, oracle.model):
        each.get_submodule("1").eval()  # the statistics of a half are others
    for t in range(7):
        x = batch(t)[:6]
        oracle.step(x)
        for part in x.chunk(2):
            torch.autograd.backward(scaler.scale(loss_of(model(part)) / 2))
        scaler.unscale_(optimizer)
        _clip(model)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        same(model, oracle.model)
    assert scaler.get_scale() > 256


def _clip(model: nn.Module) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.05)


class Stem(nn.Module):
    """A slow layer before a thin network."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.body = nn.Linear(6, 6).double(), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.stem(x).tanh())  # type: ignore[no-any-return]


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_fast_part_of_a_multirate_optimizer(wrapped: bool) -> None:
    """Its thin parameters are trained as without the slow part, which moves too, unless its lr is zero."""
    model = Stem(thin_net())
    if wrapped:
        slow, fast = SGD(model.stem.parameters(), lr=0.01), SGD(model.body.parameters(), lr=0.1)
        optimizer: Any = mrreg.Multirate([(fast, 1), (slow, 2)], model=model)
    else:
        optimizer = mrreg.MultirateSGD(model, lr=0.1, k=2, fast="body", slow_lr=0.0)
    mrreg.attach(optimizer, model)
    oracle = LiteralTraining(Stem(net()).body, GROUPS, lambda ps: SGD(ps, lr=0.1), K, K, True)
    for t in range(2 * K + 1):
        features = model.stem(batch(t)).tanh().detach()
        oracle.step(features)
        train(model, optimizer, [t])
        torch.testing.assert_close(dict(model.body.state_dict()), dict(oracle.model.state_dict()), **TOLERANCE)
    assert torch.equal(model.stem.weight, Stem(net()).stem.weight) is not wrapped


@pytest.mark.filterwarnings("ignore:.*the fast part comes before")
def test_thin_layers_in_a_slow_part_are_refused() -> None:
    model = Stem(thin_net())
    optimizer = mrreg.MultirateSGD(model, lr=0.1, k=2, fast="stem")
    with pytest.raises(ValueError, match="must be in a part of period 1"):
        mrreg.attach(optimizer, model)
    assert not mask_of(model.body).attached


@pytest.mark.slow
def test_a_compiled_step() -> None:
    torch._dynamo.reset()
    model, optimizer = attached(ADAM)
    other, its = attached(ADAM)
    compiled: Any = torch.compile(optimizer.step, backend="aot_eager")
    for t in range(2 * K + 1):
        train(other, its, [t])
        optimizer.zero_grad()
        loss_of(model(batch(t))).backward()  # type: ignore[no-untyped-call]
        compiled()
        same(model, other, rtol=1e-5, atol=1e-6)  # a compiled AdamW corrects its bias in float32
    assert optimizer.param_groups[0]["mask_clock"] == 2 * K + 1


def test_copies_train_on_their_own_in_threads() -> None:
    model, optimizer = attached(MOMENTUM)
    train(model, optimizer, [0])
    copies = [copy.deepcopy(model) for _ in range(4)]
    optimizers = [MOMENTUM(each.parameters()) for each in copies]
    for each, its in zip(copies, optimizers, strict=True):
        its.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        mrreg.attach(its, each)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(train, copies, optimizers, [range(1, 6)] * 4))
    train(model, optimizer, range(1, 6))
    for each in copies:
        same(each, model, rtol=0, atol=0)


def test_another_thread_saves_in_the_middle_of_a_masked_forward() -> None:
    model = Watched(*net())
    model, _ = mrreg.thin(model, p=0.5, k=K, example_inputs=batch(0))
    optimizer = MOMENTUM(model.parameters())
    mrreg.attach(optimizer, model)
    train(model, optimizer, [0])

    def saved() -> Any:
        return copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    def look() -> None:
        with ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(saved).result())

    seen: list[Any] = []
    before = saved()
    model.inside = look
    model(batch(1))
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):  # on their way
        assert seen[0][0].pop(name).shape == before[0].pop(name).shape
    torch.testing.assert_close(seen, [before], rtol=0, atol=0)


@pytest.mark.parametrize("make", [ADAM, MOMENTUM])
def test_memory_may_be_laid_out_anew_on_the_way(make: Any) -> None:
    trained = []
    for moved in (False, True):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 2, 1)]
        model, _ = mrreg.thin(nn.Sequential(*layers), p=0.5, k=3, example_inputs=torch.randn(2, 3, 8, 8))
        optimizer = make(model.parameters())
        mrreg.attach(optimizer, model)
        for t in range(8):
            if moved and t in (2, 4):  # within a cycle, and between two
                model.to(memory_format=torch.channels_last if t == 2 else torch.contiguous_format)
            optimizer.zero_grad()
            model(torch.randn(2, 3, 8, 8)).square().mean().backward()
            optimizer.step()
        trained.append(model.state_dict())
    torch.testing.assert_close(*trained)


class Functions(nn.Module):
    """Has parameters of its own, so that a tracer looks into it, and a closure over itself and a module of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Parameter(torch.randn(3, 16))

        functional: Any = nn.functional

        def block(x: Tensor, *, factor: float = 2.0) -> Tensor:
            return functional.relu(self.norm(self.one(x))) * factor  # type: ignore[no-any-return]

        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.block(x), self.two)


def test_what_an_attribute_closes_over_is_copied_for_the_search() -> None:
    model, report = mrreg.thin(Functions(), p=0.5, k=K, example_inputs=torch.randn(4, 6) + 9)
    assert [name for name, entry in report.items() if entry.admitted] == ["one"]
    assert model.norm.num_batches_tracked == 0


def test_a_symbolic_trace_of_a_masked_forward_is_refused() -> None:
    model, _ = mrreg.thin(Functions(), p=0.5, k=K, example_inputs=torch.randn(4, 6))
    optimizer = ADAM(model.parameters())
    mrreg.attach(optimizer, model)
    x = torch.randn(4, 6)
    for trace in (torch.fx.symbolic_trace, lambda each: make_fx(each)(x)):
        with pytest.raises(RuntimeError, match=r"leave out the same entries for ever\. Call eval\(\) first"):
            trace(model)
    torch.testing.assert_close(torch.fx.symbolic_trace(model.eval())(x), model(x))


@pytest.mark.parametrize("stored", [False, True])
def test_sparse_inputs_and_buffers(stored: bool) -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 16), nn.Linear(16, 3)
            if stored:
                self.register_buffer("edges", edges)

        def forward(self, x: Tensor, edges: Any = None) -> Tensor:
            return self.two(torch.sparse.mm(self.edges if stored else edges, self.one(x)).relu())  # type: ignore[no-any-return]

    edges = torch.eye(7).roll(1, 0).to_sparse()
    inputs = (torch.randn(7, 6),) if stored else (torch.randn(7, 6), edges)
    _, report = mrreg.thin(Graph(), p=0.5, k=K, example_inputs=inputs)
    assert [name for name, entry in report.items() if entry.admitted] == ["one"]


def test_units_beside_complex_weights_are_tried() -> None:
    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.skip, self.two = nn.Conv1d(2, 8, 1), nn.Conv1d(8, 8, 1), nn.Conv1d(8, 1, 1)
            self.weight = nn.Parameter(torch.randn(8, 8, 3, dtype=torch.cfloat))

        def forward(self, x: Tensor) -> Tensor:
            h = self.one(x)
            low = torch.einsum("bix,iox->box", torch.fft.rfft(h)[..., :3], self.weight)
            return self.two((torch.fft.irfft(low, n=x.shape[-1]) + self.skip(h)).relu())  # type: ignore[no-any-return]

    _, report = mrreg.thin(Fourier(), p=0.5, k=K, example_inputs=torch.randn(2, 2, 16))
    assert report["skip"].admitted
