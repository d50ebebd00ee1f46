"""`Multirate` among torch's own tools: schedulers, hooks, closures, scalers, accumulation, compilation."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.optimizers import (
    Make,
    adamw,
    clock,
    hybrid,
    loss,
    network,
    same,
    sgd,
    train,
)
from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedulers
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import mrreg

UNSEEN = pytest.mark.filterwarnings("ignore:.*no forward of the model was seen")


@pytest.mark.filterwarnings("ignore:.* k=5 has no effect, since all parameters are fast")
@pytest.mark.parametrize(("k", "fast"), [(5, None), (1, None), (1, "head")])
def test_a_plain_list_or_k_1_is_torch(k: int, fast: Any) -> None:
    for ours, theirs, options in (
        (mrreg.MultirateSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
        (mrreg.MultirateAdamW, torch.optim.AdamW, {"amsgrad": True}),
    ):
        net, twin = network(), network()
        train(net, ours(net.named_parameters(), k=k, fast=fast, **options), range(6))
        train(twin, theirs(twin.parameters(), **options), range(6))
        assert same(net, twin)


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda t: t / 4),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda _: 0.9),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=20),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o, 0.1), schedulers.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.StepLR(o, 2), schedulers.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_set_what_they_set_in_torch(name: str) -> None:
    """Also the momentum or the betas, where they cycle: hybrids, which have no common one, do so below."""
    make: Make = [sgd, adamw][len(name) % 2]
    net, twin = network(), network()
    optimizer = make(net)
    groups = [{"params": p, "lr": g["lr"]} for p, g in zip(twin.parameters(), optimizer.param_groups, strict=False)]
    plain: Optimizer = torch.optim.AdamW(groups) if make is adamw else torch.optim.SGD(groups, momentum=0.9)
    ours, theirs = SCHEDULERS[name](optimizer), SCHEDULERS[name](plain)
    for t in range(9):
        train(net, optimizer, range(t, t + 1))
        train(twin, plain, range(t, t + 1))
        for each in (ours, theirs):
            each.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        for key in {"lr", "momentum" if make is sgd else "lr", "betas" if make is adamw else "lr"}:
            assert [g[key] for g in optimizer.param_groups][:2] == [g[key] for g in plain.param_groups][:2]
    saved = copy.deepcopy((ours.state_dict(), optimizer.state_dict()))
    ours.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(net, optimizer, range(9, 12), ours.step if name != "ReduceLROnPlateau" else None)


def test_a_scheduler_of_one_base() -> None:
    net = network()
    base = torch.optim.SGD(net.trunk.parameters(), lr=0.1)
    scheduler = schedulers.StepLR(base, 1, gamma=0.5)
    parts = [(torch.optim.Adam(net.head.parameters(), lr=0.01), 1), (base, 2)]
    optimizer = mrreg.Multirate(parts, model=net)
    train(net, optimizer, range(3), scheduler.step)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.0125]


def test_hooks_fire_once_per_step() -> None:
    """Its own, and those of all optimizers: the steps of its bases are none of the user's; a base's when it steps."""
    net = network()
    base = torch.optim.SGD(net.trunk.parameters(), lr=0.1)
    optimizer = mrreg.Multirate([(torch.optim.AdamW(net.head.parameters()), 1), (base, 3)], model=net)
    calls: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: calls.append(name)

    handles = [
        optimizer.register_step_pre_hook(note("pre")),
        optimizer.register_step_post_hook(note("post")),
        base.register_step_pre_hook(note("base pre")),
        base.register_step_post_hook(note("base post")),
        register_optimizer_step_pre_hook(note("global pre")),
        register_optimizer_step_post_hook(note("global post")),
    ]
    try:
        train(net, optimizer, range(5))
    finally:
        for handle in handles:
            handle.remove()
    assert sorted(calls) == sorted(["pre", "post", "global pre", "global post"] * 5 + ["base pre", "base post"] * 2)


def test_a_closure_runs_once_per_step_and_its_loss_comes_back() -> None:
    net = network()
    optimizer = sgd(net)
    losses = []

    def closure() -> float:
        value = loss(net, 0)
        torch.autograd.backward(value)
        losses.append(value.item())
        return value.item()

    assert [optimizer.step(closure) for _ in range(3)] == losses


@pytest.mark.parametrize("make", [sgd, partial(adamw, fused=True), hybrid])
def test_a_step_that_the_gradient_scaler_skips_is_none(make: Make) -> None:
    """pytorch 67590: schedule and optimizer disagree after it; or no inf checks where a base has no gradients."""
    net, twin = network(), network()
    optimizer, plain = make(net), make(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for t in range(9):
        for skipped in (True, False) if t in (0, 3, 4) else (False,):
            value = loss(net, t) * (torch.inf if skipped else 1.0)
            torch.autograd.backward(scaler.scale(value))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert clock(optimizer) == t + (not skipped)
        train(twin, plain, range(t, t + 1))
        for p, q in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q)
            assert p.requires_grad == q.requires_grad


def test_zero_grad_never_called() -> None:
    """As in torch, gradients add up; those of a slow part only at its sync steps."""
    net = network(torch.float64)
    optimizer = sgd(net, k=2, momentum=0.0)
    total, at = torch.zeros_like(net.trunk.weight), net.trunk.weight.detach().clone()
    for t in range(5):
        if t % 2 == 0:
            total += torch.autograd.grad(loss(net, t), net.trunk.weight)[0]
        torch.autograd.backward(loss(net, t))
        optimizer.step()
        at -= 0.1 * total
        torch.testing.assert_close(net.trunk.weight.detach(), at)


@pytest.mark.parametrize(("make", "slow_lr"), [(mrreg.MultirateSGD, "per_gradient"), (mrreg.MultirateAdamW, "coupled")])
def test_a_tensor_as_lr(make: Any, slow_lr: str) -> None:
    net, twin = network(), network()
    ours = make(net, lr=torch.tensor(0.25), k=4, fast=net.head, slow_lr=slow_lr)
    plain = make(twin, lr=0.25, k=4, fast=twin.head, slow_lr=slow_lr)
    for each, by in ((net, ours), (twin, plain)):
        train(each, by, range(9), schedulers.StepLR(by, 3, gamma=0.5).step)
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@UNSEEN
@pytest.mark.parametrize("gradient", ["sync", "mean"])
def test_sparse_gradients(gradient: str) -> None:
    def run(sparse: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        table = torch.nn.Embedding(5, 3, sparse=sparse)
        table.weight.data = torch.randn(5, 3, generator=generator)
        fast = torch.nn.Parameter(torch.ones(3))
        both = torch.nn.ParameterList([table.weight, fast])
        optimizer = mrreg.MultirateSGD(both, lr=0.1, k=2, fast=fast, gradient=gradient)
        for t in range(5):
            torch.autograd.backward((table(torch.tensor([t, 1])) * fast).square().sum())
            optimizer.step()
            optimizer.zero_grad()
        return table.weight.detach()

    torch.testing.assert_close(run(True), run(False))
