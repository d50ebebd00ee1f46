"""Thin models whose kept entries stay in place for a cycle: the same numbers, whoever looks and whenever."""

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mrreg
from mrreg.masks.attachment import Attachment

K, STEPS = 4, 11
Model = Callable[[], nn.Module]
Look = Callable[[nn.Module, torch.optim.Optimizer], Any]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(2, 8)
        self.layer = nn.TransformerEncoderLayer(8, 4, 16, 0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.inside(x.view(-1, 3, 2))).mean(1))
        return out


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(torch.relu(self.norm(self.one(x.view(-1, 1, 2, 3))))).mean((2, 3))
        return out


SHARES = {mlp: {"inputs": 0.34, "hidden": 0.5}, Encoder: {"hidden": 0.5, "heads": 0.5}, Convolutions: {"channels": 0.5}}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
    "plain SGD": lambda params: torch.optim.SGD(params, lr=0.1),
}


def made(
    build: Callable[[], nn.Module], optimizer: str | Callable[..., torch.optim.Optimizer], resident: bool
) -> tuple[nn.Module, torch.optim.Optimizer, Attachment]:
    torch.manual_seed(0)
    model, _ = mrreg.thin(build().double(), SHARES[build], K, torch.randn(2, 6), resident=resident)
    make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    made = make(model.parameters())
    return model, made, mrreg.attach(made, model, seed=3)


def loss_of(model: nn.Module, step: int) -> Any:
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(7, size, generator=generator, dtype=torch.float64) for size in (6, 3))
    return (model(x) - y).square().mean()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, look: Look | None = None) -> None:
    for step in range(first, last):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if look:
            look(model, optimizer)


def assert_same(one: nn.Module, other: nn.Module, a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> None:
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(a.state_dict()["state"], b.state_dict()["state"], rtol=0, atol=0)


def entries(optimizer: torch.optim.Optimizer) -> int:
    return sum(p.numel() for group in optimizer.param_groups for p in group["params"])


LOOKS: dict[str, Look] = {
    "nobody": lambda m, o: None,
    "state dict": lambda m, o: m.state_dict(),
    "state dict of a part": lambda m, o: [child.state_dict() for child in m.children()],
    "optimizer": lambda m, o: o.state_dict(),
    "list": lambda m, o: list(m.parameters()),
    "attribute": lambda m, o: [getattr(child, "weight", None) for child in m.modules()],
    "copy": lambda m, o: copy.deepcopy(m),
    "evaluation": lambda m, o: (m.eval(), loss_of(m, 99), m.train()),
    "load": lambda m, o: (m.load_state_dict(m.state_dict()), o.load_state_dict(o.state_dict())),
    "zero_grad of the model": lambda m, o: m.zero_grad(),
}


@pytest.mark.parametrize("build", SHARES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("look", LOOKS)
def test_every_number_is_that_of_gathering_at_each_step(build: Model, optimizer: str, look: str) -> None:
    (plain, a, _), (resident, b, _) = (made(build, optimizer, each) for each in (False, True))
    for step in range(STEPS):
        train(plain, a, step, step + 1, LOOKS[look])
        train(resident, b, step, step + 1, LOOKS[look])
        copies = copy.deepcopy((resident, b)) if look == "nobody" else (resident, b)
        if look != "nobody":
            assert_same(plain, copies[0], a, copies[1])
    assert_same(plain, resident, a, b)


def test_nothing_is_gathered_while_nobody_looks() -> None:
    model, optimizer, _ = made(mlp, "AdamW", True)
    seen = []
    for step in range(2 * K):
        loss_of(model, step).backward()
        seen.append(sum(p.grad.numel() for group in optimizer.param_groups for p in group["params"]))
        optimizer.step()
        optimizer.zero_grad()
    whole = sum(p.numel() for p in model.parameters())
    assert seen == [*[seen[0]] * (K - 1), whole] * 2
    assert seen[0] < whole / 2


def test_a_look_at_every_step_is_told_once() -> None:
    model, optimizer, _ = made(mlp, "SGD", True)
    with pytest.warns(mrreg.NoEffectWarning, match="something reads the parameters of the model at every step") as told:
        train(model, optimizer, 0, 6 * K, look=lambda m, o: m.zero_grad())
    assert [each.filename for each in told] == [__file__]


def test_leaves_are_freed_without_the_garbage_collector() -> None:
    model, optimizer, _ = made(mlp, "AdamW", True)
    gc.collect()
    gc.disable()
    try:
        train(model, optimizer, 0, 1)
        leaves = [weakref.ref(p) for group in optimizer.param_groups for p in group["params"]]
        leaves = [leaf for leaf in leaves if all(leaf() is not p for p in model.parameters())]
        assert len(leaves) == 5
        train(model, optimizer, 1, 2 * K)
        assert not any(leaf() is not None for leaf in leaves)
    finally:
        gc.enable()


def test_a_look_between_forward_and_backward_loses_no_gradient() -> None:
    (plain, a, _), (resident, b, _) = (made(mlp, "SGD", each) for each in (False, True))
    for model, optimizer in ((plain, a), (resident, b)):
        for step in range(STEPS):
            loss = loss_of(model, step)
            before = [p.detach().clone() for p in model.parameters()]
            loss.backward()
            assert all(p.grad is not None for p in model.parameters())
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            assert any(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert_same(plain, resident, a, b)


def test_gradients_are_clipped_and_accumulated_in_place() -> None:
    (plain, a, _), (resident, b, _) = (made(Encoder, "AdamW", each) for each in (False, True))
    for model, optimizer in ((plain, a), (resident, b)):
        for step in range(STEPS):
            for part in range(2):
                loss_of(model, 2 * step + part).backward()
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 3 != 0)
    torch.testing.assert_close(dict(plain.state_dict()), dict(resident.state_dict()), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", range(1, 2 * K))
def test_resuming_at_any_step(steps: int) -> None:
    plain, a, _ = made(mlp, "AdamW", False)
    first, b, _ = made(mlp, "AdamW", True)
    train(plain, a, 0, STEPS)
    train(first, b, 0, steps)
    saved = copy.deepcopy((first.state_dict(), b.state_dict()))
    then, c, _ = made(mlp, "AdamW", True)
    then.load_state_dict(saved[0])
    c.load_state_dict(saved[1])
    train(then, c, steps, STEPS)
    assert_same(plain, then, a, c)


@pytest.mark.parametrize("end", ["remove", "unwrap", "attach again"])
def test_leaving_in_mid_cycle_keeps_what_was_learned(end: str) -> None:
    (plain, a, of_plain), (resident, b, of_resident) = (made(mlp, "SGD", each) for each in (False, True))
    for model, optimizer, handle in ((plain, a, of_plain), (resident, b, of_resident)):
        train(model, optimizer, 0, 2)
        loss_of(model, 2).backward()
        match end:
            case "remove":
                handle.remove()
            case "unwrap":
                mrreg.unwrap(model)
            case _:
                other = OPTIMIZERS["SGD"](model.parameters())
                mrreg.attach(other, model, seed=3)
                other.step()
                other.zero_grad()
                train(model, other, 0, STEPS)
        assert [p.shape for p in model.parameters()] == [p.shape for p in mlp().parameters()]
        assert {type(vars(module)["_parameters"]) for module in model.modules()} == {dict}
        if end == "remove":
            optimizer.step()
    assert_same(plain, resident, a, b)


@pytest.mark.parametrize("hooked", [False, True])
def test_saving_in_the_middle_of_a_step(hooked: bool) -> None:
    class Base(torch.optim.SGD):
        pass

    if hooked:  # torch puts hooks on the steps of classes that have had an instance
        Base([torch.zeros(1)])
    saved: list[Any] = []
    model: nn.Module = nn.Identity()  # while `attach` tries the optimizer on a small tensor

    class Saving(Base):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.mul_(1)
                    saved.append((model.state_dict(), self.state_dict()) if len(saved) % 5 == 3 else None)
            return super().step(closure)

    results = []
    for resident in (False, True):
        model, optimizer, _ = made(mlp, partial(Saving, lr=0.1, momentum=0.9), resident)
        saved.clear()
        train(model, optimizer, 0, STEPS)
        results.append(dict(model.state_dict()))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_hooks_of_parameters_and_frozen_ones() -> None:
    results = []
    for resident in (False, True):
        torch.manual_seed(0)
        net: Any = mlp().double()
        net[2].weight.requires_grad_(False)
        net[0].weight.register_hook(lambda grad: 2 * grad)
        model, _ = mrreg.thin(net, 0.5, K, torch.randn(2, 6), resident=resident)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        mrreg.attach(optimizer, model, seed=3)
        train(model, optimizer, 0, STEPS)
        results.append(dict(model.state_dict()))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_no_warning_and_copies_stay_resident() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, optimizer, _ = made(mlp, "AdamW", True)
        train(model, optimizer, 0, STEPS)
        again = copy.deepcopy(model)
        other = OPTIMIZERS["AdamW"](again.parameters())
        mrreg.attach(other, again)
        whole = entries(other)
        loss_of(again, 0).backward()
    assert entries(other) < whole / 2


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + nn.Sequential.forward(self, x)  # type: ignore[no-untyped-call]
        return out


@pytest.mark.filterwarnings("ignore:thin. resident=True has no effect")
def test_blocks_that_are_off() -> None:
    results = []
    for resident in (False, True):
        torch.manual_seed(0)
        blocks = [Residual(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)) for _ in range(4)]
        p: dict[str, Any] = {"blocks": {"[0-3]": 0.5}, "hidden": 0.5}
        net = nn.Sequential(*blocks, nn.Linear(6, 3)).double()
        model, report = mrreg.thin(net, p, K, torch.randn(2, 6), resident=resident)
        assert report["blocks"].kept == 2
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        mrreg.attach(optimizer, model, seed=3)
        train(model, optimizer, 0, STEPS, look=LOOKS["optimizer"] if resident else None)
        train(model, optimizer, STEPS, 2 * STEPS)
        results.append((dict(model.state_dict()), optimizer.state_dict()["state"]))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_compiled_model_gathers() -> None:
    results = []
    for resident in (False, True):
        model, optimizer, _ = made(mlp, "SGD", resident)
        compiled: Any = torch.compile(model, backend="aot_eager")
        train(compiled, optimizer, 0, K)
        train(model, optimizer, K, K + 2)
        train(compiled, optimizer, K + 2, STEPS)
        results.append(dict(model.state_dict()))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)


def test_a_scaler_that_skips_steps() -> None:
    results = []
    for resident in (False, True):
        model, optimizer, handle = made(Encoder, "AdamW", resident)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        for step in range(STEPS):
            loss = loss_of(model, step)
            scaler.scale(loss * (float("inf") if step in (1, 6) else 1.0)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1e9)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        results.append((dict(model.state_dict()), handle.state()))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def looking(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, way: str) -> None:
    """One step in which something reads parameters where it matters most."""

    def closure() -> Any:
        optimizer.zero_grad() if way != "zero in a closure" else model.zero_grad()
        loss = loss_of(model, step)
        if way == "penalty in a closure":
            loss = loss + sum(p.square().sum() for p in model.parameters())
        loss.backward()
        if way == "clip in a closure":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return loss

    if "closure" in way:
        optimizer.step(closure)
        return
    optimizer.zero_grad()
    penalty: Any = 0.0
    if way == "penalty before the forward":
        penalty = sum(p.square().sum() for p in model.parameters())
    (loss_of(model, step) + penalty).backward()
    optimizer.step()
    if way == "inference mode":
        model.eval()
        with torch.inference_mode():
            loss_of(model, step)
        model.train()


LOOKING = (
    "clip in a closure",
    "zero in a closure",
    "penalty in a closure",
    "penalty before the forward",
    "inference mode",
    "clip in a hook",
)


@pytest.mark.filterwarnings("ignore:thin. resident=True has no effect")
@pytest.mark.parametrize("way", LOOKING)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_looks_in_closures_hooks_and_losses(way: str, optimizer: str) -> None:
    results = []
    for resident in (False, True):
        model, used, _ = made(mlp, optimizer, resident)
        if way == "clip in a hook":
            clip: Any = lambda *_, m=model: nn.utils.clip_grad_norm_(m.parameters(), 0.01) and None  # noqa: E731
            used.register_step_pre_hook(clip)
        for step in range(STEPS):
            looking(model, used, step, way)
        results.append((dict(model.state_dict()), used.state_dict()["state"]))
    torch.testing.assert_close(*results, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("failing", range(K))
def test_a_step_that_failed_is_no_step(resident: bool, failing: int) -> None:
    class Failing(torch.optim.AdamW):
        fails = False

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise RuntimeError("out of memory")
            return super().step(closure)

    results = []
    for fails in (False, True):
        model, made_optimizer, _ = made(mlp, partial(Failing, lr=0.01, weight_decay=0.1), resident)
        optimizer: Any = made_optimizer
        train(model, optimizer, 0, failing)
        if fails:
            optimizer.fails = True
            with pytest.raises(RuntimeError, match="out of memory"):
                train(model, optimizer, 99, 100)
            optimizer.fails = False
            optimizer.zero_grad()
            model.state_dict()
        train(model, optimizer, failing, STEPS)
        results.append((dict(model.state_dict()), optimizer.state_dict()["state"]))
    torch.testing.assert_close(*results, rtol=0, atol=0)
