"""Flags at rest: an optimizer that knows the model shows nobody which parameters are due."""

import copy
import gc
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.optimizers import MODE, Net, hybrid, loss, network, sgd, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mrreg

K = 3
STEPS = 2 * K + 2


@pytest.fixture(autouse=True)
def mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizers of the helpers know their model."""
    monkeypatch.setattr(MODE, "at_rest", True)


def flags(net: nn.Module) -> list[bool]:
    return [p.requires_grad for p in net.parameters()]


def bits(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def undisturbed(steps: int = STEPS) -> Net:
    """The network after a training in the mode without a model."""
    net = network()
    optimizer = mrreg.MultirateSGD(net.parameters(), lr=0.1, k=K, fast=net.head, momentum=0.9)
    train(net, optimizer, range(steps))
    optimizer.close()
    return net


def gradients(net: nn.Module) -> list[bool]:
    return [p.grad is not None for p in net.parameters()]


def expected_gradients(t: int) -> list[bool]:
    return [t % K == 0] * 2 + [True] * 2


# Who looks between steps: each gets the network and raises where it sees, or leaves, something else than a plain one.


def average_by_flags(net: Net, _: Any) -> None:
    """Diffusers' rule: average what trains, copy the rest."""
    assert all(flags(net))


def checkpoint_of_what_trains(net: Net, _: Any) -> None:
    saved = {name for name, p in net.named_parameters() if p.requires_grad}
    assert saved == set(dict(net.named_parameters()))


def parameters_for_another_optimizer(net: Net, _: Any) -> None:
    assert len(list(filter(lambda p: p.requires_grad, net.parameters()))) == 4


def copied_model(net: Net, _: Any) -> None:
    twin = copy.deepcopy(net)
    assert all(flags(twin))
    torch.autograd.backward(loss(twin, 0))
    assert all(gradients(twin))


def averaged_model(net: Net, _: Any) -> None:
    average = torch.optim.swa_utils.AveragedModel(net)
    average.update_parameters(net)
    assert all(flags(average.module))


def pickled_model(net: Net, _: Any) -> None:
    assert all(flags(pickle.loads(pickle.dumps(net))))


def gan_toggle(net: Net, _: Any) -> None:
    net.requires_grad_(False)
    net(torch.randn(3, 4))  # of the other player's turn
    net.requires_grad_(True)


def evaluation(net: Net, _: Any) -> None:
    net.eval()
    with torch.no_grad():
        net(torch.randn(3, 4))
    net.train()
    assert all(flags(net))


def input_gradient(net: Net, _: Any) -> None:
    """A saliency map in evaluation mode."""
    x = torch.randn(3, 4, requires_grad=True)
    net.eval()
    torch.autograd.grad(net(x).sum(), x)
    net.train()
    assert all(flags(net))


def functional_gradient(net: Net, _: Any) -> None:
    params = dict(net.named_parameters())
    x = torch.randn(3, 4)
    found = torch.func.grad(lambda p: torch.func.functional_call(net, p, (x,)).sum())(params)
    assert found.keys() == params.keys()
    assert all(flags(net))


def saved_and_loaded(net: Net, optimizer: Any) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def whole_backward(net: Net, optimizer: Any) -> None:
    with optimizer.all_trainable():
        torch.autograd.backward(loss(net, 0))
        assert all(gradients(net))
    net.zero_grad()


def second_zero_grad(net: Net, optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=False)
    net.zero_grad()


LOOKERS: list[Callable[[Net, Any], None]] = [
    average_by_flags,
    checkpoint_of_what_trains,
    parameters_for_another_optimizer,
    copied_model,
    averaged_model,
    pickled_model,
    gan_toggle,
    evaluation,
    input_gradient,
    functional_gradient,
    saved_and_loaded,
    whole_backward,
    second_zero_grad,
]


@pytest.mark.parametrize("look", LOOKERS, ids=lambda look: str(look.__name__))
def test_who_looks_between_steps_sees_a_plain_model_and_changes_nothing(look: Callable[[Net, Any], None]) -> None:
    net = network()
    optimizer = sgd(net)
    for t in range(STEPS):
        look(net, optimizer)
        torch.autograd.backward(loss(net, t))
        assert gradients(net) == expected_gradients(t)
        optimizer.step()
        optimizer.zero_grad()
        assert all(flags(net))
        look(net, optimizer)
    assert bits(net, undisturbed())
    assert "flags at rest" in repr(optimizer)


def accumulated(net: Net, optimizer: Any, t: int) -> None:
    for _ in range(2):
        torch.autograd.backward(loss(net, t) / 2)
    optimizer.step()
    optimizer.zero_grad()


def cleared_between_forward_and_backward(net: Net, optimizer: Any, t: int) -> None:
    value = loss(net, t)
    optimizer.zero_grad()
    torch.autograd.backward(value)
    optimizer.step()


def cleared_first(net: Net, optimizer: Any, t: int) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss(net, t))
    optimizer.step()


def evaluated_before_backward(net: Net, optimizer: Any, t: int) -> None:
    value = loss(net, t)
    with torch.no_grad():
        loss(net.eval(), t)
    net.train()
    torch.autograd.backward(value)
    optimizer.step()
    optimizer.zero_grad()


def with_closure(net: Net, optimizer: Any, t: int) -> None:
    def closure() -> float:
        optimizer.zero_grad()
        value = loss(net, t)
        torch.autograd.backward(value)
        return value.item()

    optimizer.step(closure)


def skipped_first(net: Net, optimizer: Any, t: int) -> None:
    """A gradient scaler that leaves a step out."""
    torch.autograd.backward(loss(net, t) * torch.inf)
    optimizer.zero_grad()
    assert all(flags(net))
    torch.autograd.backward(loss(net, t))
    optimizer.step()
    optimizer.zero_grad()


def failed_first(net: Net, optimizer: Any, t: int) -> None:
    with pytest.raises(RuntimeError):
        net(torch.randn(3, 5))
    torch.autograd.backward(loss(net, t))
    optimizer.step()
    optimizer.zero_grad()


def toggled_inside_a_step(net: Net, optimizer: Any, t: int) -> None:
    loss(net, t)
    net.requires_grad_(True)
    torch.autograd.backward(loss(net, t))
    assert gradients(net) == expected_gradients(t)
    optimizer.step()
    optimizer.zero_grad()


LOOPS = [
    accumulated,
    cleared_between_forward_and_backward,
    cleared_first,
    evaluated_before_backward,
    with_closure,
    skipped_first,
    failed_first,
    toggled_inside_a_step,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: str(loop.__name__))
def test_every_loop_trains_as_with_visible_flags(loop: Callable[[Net, Any, int], None]) -> None:
    net, twin = network(), network()
    optimizer = sgd(net)
    other = mrreg.MultirateSGD(twin.parameters(), lr=0.1, k=K, fast=twin.head, momentum=0.9)
    for t in range(STEPS):
        loop(net, optimizer, t)
        assert all(flags(net))
        torch.autograd.backward(loss(twin, t) / (2 if loop is accumulated else 1))
        if loop is accumulated:
            torch.autograd.backward(loss(twin, t) / 2)
        other.step()
        other.zero_grad()
        assert bits(net, twin)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_recomputes_with_the_flags_of_the_forward(use_reentrant: bool) -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden: Any = checkpoint(lambda y: self.trunk(y).relu(), x.requires_grad_(), use_reentrant=use_reentrant)
            return self.head(hidden)  # type: ignore[no-any-return]

    net = Checkpointed()
    net.load_state_dict(network().state_dict())
    optimizer = sgd(net)
    for t in range(STEPS):
        value = loss(net, t)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        assert gradients(net) == expected_gradients(t)
        optimizer.step()
    for p, q in zip(net.parameters(), undisturbed().parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_several_scales_and_a_model_in_evaluation_mode() -> None:
    """Fine-tuning with frozen statistics; the first step cannot know that no training mode will come."""
    net, twin = network(), network()
    optimizer = hybrid(net.eval())
    MODE.at_rest = False
    other = hybrid(twin)
    for t in range(9):
        torch.autograd.backward(loss(net, t))
        assert t < 1 or gradients(net) == [t % 2 == 0, t % 4 == 0, True, True]
        optimizer.step()
        optimizer.zero_grad()
        train(twin, other, range(t, t + 1))
        assert all(flags(net))
        assert bits(net, twin)


class TestTheUser:
    """What the user does to flags is honoured."""

    def test_freezing_a_slow_part_between_steps_needs_no_close(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        net.trunk.requires_grad_(False)
        train(net, optimizer, range(2, 4))
        before = net.trunk.weight.clone()  # it drifts to its next sync step
        train(net, optimizer, range(4, 7))
        assert torch.equal(net.trunk.weight, before)
        assert flags(net) == [False, False, True, True]
        net.trunk.requires_grad_(True)
        train(net, optimizer, range(7, 10))
        assert not torch.equal(net.trunk.weight, before)
        assert all(flags(net))

    def test_frozen_from_the_start_and_unfrozen_later_saves_time_too(self) -> None:
        net = network()
        net.trunk.requires_grad_(False)
        optimizer = sgd(net)
        for t in range(8):
            if t == 4:
                net.trunk.requires_grad_(True)
            torch.autograd.backward(loss(net, t))
            assert gradients(net) == [t == 6] * 2 + [True] * 2
            optimizer.step()
            optimizer.zero_grad()

    @pytest.mark.parametrize("end", ["close", "with", "delete"])
    def test_an_open_window_closes_at_the_end(self, end: str) -> None:
        net = network()
        optimizer: Any = sgd(net)
        train(net, optimizer, range(1))
        loss(net, 1)
        assert flags(net) == [False, False, True, True]
        if end == "close":
            optimizer.close()
        elif end == "with":
            with optimizer:
                pass
        else:
            del optimizer
            gc.collect()
            assert not net._forward_pre_hooks
            assert not net.trunk._forward_pre_hooks
        assert all(flags(net))
        loss(net, 1)
        assert all(flags(net))

    def test_after_close_the_next_step_takes_it_up_again(self) -> None:
        net = network()
        optimizer = sgd(net)
        for t in range(STEPS):
            train(net, optimizer, range(t, t + 1))
            optimizer.close()
        assert bits(net, undisturbed())
        train(net, optimizer, range(STEPS, STEPS + 1))
        loss(net, 0)
        assert not all(flags(net)) or optimizer.due[1]

    def test_all_trainable_in_both_modes_and_inside_a_step(self) -> None:
        for MODE.at_rest in (True, False):
            net = network()
            optimizer = sgd(net)
            train(net, optimizer, range(1))
            loss(net, 1)
            before = flags(net)
            assert before == [False, False, True, True]
            with optimizer.all_trainable():
                loss(net, 1)
                assert all(flags(net))
            assert flags(net) == before


class TestOtherOptimizers:
    """A parameter has one optimizer that switches its flag: the newest."""

    @pytest.mark.parametrize("at_rest", [True, False])
    def test_a_new_one_takes_over_an_open_window(self, at_rest: bool) -> None:
        net = network()
        old = sgd(net)
        train(net, old, range(1))
        loss(net, 1)
        MODE.at_rest = at_rest
        new = sgd(net)
        assert all(flags(net))
        old.close()
        torch.autograd.backward(loss(net, 0))
        assert all(gradients(net))
        new.step()
        new.zero_grad()
        del old
        gc.collect()
        torch.autograd.backward(loss(net, 1))
        assert gradients(net) == expected_gradients(1)

    def test_one_at_rest_takes_over_from_one_with_visible_flags(self) -> None:
        net = network()
        MODE.at_rest = False
        old = sgd(net)
        train(net, old, range(1))
        MODE.at_rest = True
        new = sgd(net)
        assert all(flags(net))
        train(net, new, range(4))
        assert all(flags(net))

    def test_a_plain_one_gets_the_parameters_back_with_a_warning(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(1))
        plain = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.warns(mrreg.NoEffectWarning, match=r"SGD.step: 2 parameters get no gradient.* leaves them alone"):
            train(net, plain, range(1))
        assert all(flags(net))
        torch.autograd.backward(loss(net, 1))
        assert all(gradients(net))

    def test_it_warns_also_when_its_first_step_was_a_sync_step(self) -> None:
        net = network()
        optimizer = sgd(net)
        plain = torch.optim.SGD(net.parameters(), lr=0.1)
        train(net, plain, range(1))
        train(net, optimizer, range(1))
        with pytest.warns(mrreg.NoEffectWarning, match="2 parameters get no gradient"):
            train(net, plain, range(1))

    def test_one_of_other_parameters_is_left_alone(self) -> None:
        net, other = network(), network()
        optimizer, plain = sgd(net), torch.optim.SGD(other.parameters(), lr=0.1)
        for t in range(STEPS):
            torch.autograd.backward(loss(net, t))
            train(other, plain, range(t, t + 1))
            optimizer.step()
            optimizer.zero_grad()
        assert bits(net, undisturbed())


class TestFallback:
    """Where no forward is seen, training is right and flags are visible, which a warning says once."""

    def test_inner_parts_called_by_hand(self) -> None:
        net = network()
        optimizer = sgd(net)
        for t in range(STEPS):
            with pytest.warns(mrreg.NoEffectWarning, match="no forward of the model") if t == 0 else nullcontext():
                x, y = (
                    torch.randn(16, 4, generator=(g := torch.Generator().manual_seed(t))),
                    torch.randn(16, 2, generator=g),
                )
                torch.autograd.backward((net.head(torch.relu(net.trunk.forward(x))) - y).square().mean())
                optimizer.step()
            optimizer.zero_grad()
            assert flags(net) == expected_gradients(t + 1)
        assert bits(net, undisturbed())
        assert "flags visible" in repr(optimizer)

    def test_the_warning_is_at_the_users_line(self) -> None:
        net = network()
        optimizer = sgd(net)
        net.head.weight.grad = torch.ones(2, 8)
        with pytest.warns(mrreg.NoEffectWarning, match="no forward") as caught:
            optimizer.step()
        assert caught[0].filename == __file__

    def test_nothing_to_switch_nothing_to_warn_of(self) -> None:
        for options in ({"k": 1}, {"gradient": "mean"}):
            net = network()
            optimizer = sgd(net, **options)
            for p in net.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()

    @pytest.mark.slow
    @pytest.mark.parametrize("place", ["before", "after", "in place"])
    def test_compiled(self, place: str) -> None:
        from torch._dynamo.testing import CompileCounter

        torch._dynamo.reset()
        counter, net = CompileCounter(), network()
        compiled: Any = net
        if place == "before":
            compiled = torch.compile(net, backend=counter)
            optimizer: Any = mrreg.MultirateSGD(compiled, lr=0.1, k=K, fast="head", momentum=0.9)
        else:
            optimizer = sgd(net)
            if place == "after":
                compiled = torch.compile(net, backend=counter)
            else:
                net.compile(backend=counter)
        for t in range(STEPS):
            torch.autograd.backward(loss(compiled, t))
            assert gradients(net) == expected_gradients(t)
            optimizer.step()
            optimizer.zero_grad()
            assert all(flags(net))
        assert counter.frame_count == 2
        assert bits(net, undisturbed())

    @pytest.mark.slow
    def test_a_compiled_container_of_torch_whose_call_is_inside_the_graph(self) -> None:
        from torch._dynamo.testing import CompileCounter

        torch._dynamo.reset()
        counter, net = CompileCounter(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = mrreg.MultirateSGD(net, lr=0.1, k=K, fast="2", momentum=0.9)
        compiled: Any = torch.compile(net, backend=counter, fullgraph=True)
        for t in range(STEPS):
            with pytest.warns(mrreg.NoEffectWarning, match="no forward") if t == 0 else nullcontext():
                torch.autograd.backward(loss(compiled, t))
                optimizer.step()
            optimizer.zero_grad()
            assert flags(net) == expected_gradients(t + 1)
        assert counter.frame_count == 2


class TestCopies:
    """Copies have no hooks that do anything, and need no mrreg."""

    def test_a_copied_optimizer_has_visible_flags(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        twin, other = copy.deepcopy((net, optimizer))
        assert "flags visible" in repr(other)
        train(twin, other, range(2, STEPS))
        train(net, optimizer, range(2, STEPS))
        assert bits(net, twin)
        assert "flags at rest" in repr(optimizer)

    def test_a_pickled_model_loads_without_mrreg(self, tmp_path: Path) -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        optimizer = mrreg.MultirateSGD(model, fast="1")
        torch.save(model, tmp_path / "model.pt")
        code = (
            "import sys, torch; model = torch.load(sys.argv[1], weights_only=False); "
            "model(torch.ones(1, 4)).sum().backward(); assert 'mrreg' not in sys.modules; "
            "assert all(p.grad is not None for p in model.parameters())"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pt")], check=True, cwd=tmp_path)
        del optimizer


def test_a_child_that_is_called_without_the_root() -> None:
    """As Lightning does: the module with the optimizer calls `self.net(x)` in its training_step."""

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"net": network()})

    root = Trained()
    net: Any = root.parts["net"]
    optimizer = mrreg.MultirateSGD(root, lr=0.1, k=K, fast="parts.net.head", momentum=0.9)
    for t in range(STEPS):
        torch.autograd.backward(loss(net, t))
        assert gradients(net) == expected_gradients(t)
        optimizer.step()
        optimizer.zero_grad()
        assert all(flags(net))
    assert bits(net, undisturbed())


def test_groups_of_split_and_data_parallel() -> None:
    net = network()
    groups = mrreg.split(net, fast="head")
    wrapped: Any = nn.DataParallel(net)  # on the CPU it calls the module itself
    optimizer = mrreg.MultirateSGD(groups, lr=0.1, k=K, momentum=0.9, model=net)
    train(wrapped, optimizer, range(STEPS), lambda: wrapped.zero_grad() if all(flags(net)) else pytest.fail("flags"))
    assert bits(net, undisturbed())


def test_a_replica_is_no_forward_of_its_own() -> None:
    net: Any = network()
    optimizer = sgd(net)
    train(net, optimizer, range(1))
    replica = net._replicate_for_data_parallel()
    for hook in replica._forward_pre_hooks.values():
        hook(replica, ())
    assert all(flags(net))


@pytest.mark.slow
def test_adapters_switched_on_and_off() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    config = peft.LoraConfig(target_modules=["0", "1"], modules_to_save=["2"])
    adapted = peft.get_peft_model(model, config)
    before = flags(adapted)
    optimizer = mrreg.MultirateAdamW(adapted, lr=0.01, k=K, fast="*modules_to_save*")
    counts = []
    for t in range(STEPS):
        with adapted.disable_adapter():  # a reference model's turn; PEFT sets flags when it comes back
            adapted(torch.randn(2, 4))
        torch.autograd.backward(loss(adapted, t))
        counts.append(sum(gradients(adapted)))
        optimizer.step()
        optimizer.zero_grad()
        assert flags(adapted) == before
    assert counts == [counts[0] if t % K == 0 else 2 for t in range(STEPS)]
    assert counts[0] > 2
