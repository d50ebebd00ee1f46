"""Reports 10-22: what went wrong for users of other libraries, each named after its symptom."""

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.optimizers import Net, adamw, clock, hybrid, loss, network, same, sgd, train
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import mrreg


def flags(net: nn.Module) -> list[bool]:
    return [p.requires_grad for p in net.parameters()]


class TestRequiresGrad:
    """Reports 10, 11: frameworks that thaw what the user froze, or leave frozen what they froze."""

    def test_says_before_each_step_which_part_needs_a_gradient(self) -> None:
        net = network()
        optimizer = sgd(net)
        for t in range(7):
            assert flags(net) == [t % 3 == 0] * 2 + [True] * 2
            train(net, optimizer, range(t, t + 1))

    def test_frozen_by_the_user_before_construction_stays_frozen(self) -> None:
        net = network()
        net.trunk.bias.requires_grad_(False)
        net.head.bias.requires_grad_(False)
        before = copy.deepcopy(net.state_dict())
        optimizer = sgd(net)
        seen: list[bool] = []
        train(net, optimizer, range(7), lambda: seen.extend(flags(net)[1::2]))
        assert not any(seen)
        optimizer.close()
        assert flags(net) == [True, False, True, False]
        assert torch.equal(net.trunk.bias, before["trunk.bias"])

    def test_frozen_by_the_user_during_training_stays_frozen(self) -> None:
        net = network()
        optimizer = sgd(net)
        net.trunk.weight.requires_grad_(False)
        before = net.trunk.weight.clone()
        seen: list[bool] = []
        train(net, optimizer, range(7), lambda: seen.append(net.trunk.weight.requires_grad))
        assert not any(seen)
        assert torch.equal(net.trunk.weight, before)
        net.trunk.weight.requires_grad_(True)  # and trains again when the user says so
        train(net, optimizer, range(7, 12))
        assert not torch.equal(net.trunk.weight, before)
        optimizer.close()
        assert all(flags(net))

    def test_switched_on_by_the_user_in_mid_cycle_stays_on_and_changes_no_result(self) -> None:
        net, twin = network(), network()
        optimizer, plain = sgd(net), sgd(twin)
        for t in range(8):
            if t == 1:
                net.requires_grad_(True)
            train(net, optimizer, range(t, t + 1))
            train(twin, plain, range(t, t + 1))
            assert flags(net) == ([True] * 4 if 1 <= t < 3 else flags(twin))
            assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))

    def test_thawed_later_by_the_user_trains(self) -> None:
        net = network()
        net.trunk.requires_grad_(False)
        optimizer = sgd(net)
        train(net, optimizer, range(4))
        before = net.trunk.weight.clone()
        net.trunk.requires_grad_(True)
        train(net, optimizer, range(4, 7))
        assert not torch.equal(net.trunk.weight, before)

    @pytest.mark.parametrize("end", ["close", "with", "del", "error"])
    def test_is_given_back_at_the_end(self, end: str) -> None:
        net = network()
        optimizer: Any = sgd(net)
        train(net, optimizer, range(2))
        assert not all(flags(net))
        if end == "close":
            optimizer.close()
        elif end == "del":
            del optimizer
            gc.collect()
        else:
            problem = ZeroDivisionError if end == "error" else StopIteration
            with pytest.raises(problem), optimizer:
                raise problem
        assert all(flags(net))

    def test_goes_on_after_close(self) -> None:
        net, twin = network(), network()
        optimizer, plain = sgd(net), sgd(twin)
        for t in range(9):
            train(net, optimizer, range(t, t + 1))
            train(twin, plain, range(t, t + 1))
            optimizer.close()
            assert all(flags(net))
        assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))

    def test_an_optimizer_built_again_still_saves_time(self) -> None:
        """A notebook cell run twice: the first optimizer lives until the second is there."""
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        optimizer = sgd(net)
        assert all(flags(net))
        gc.collect()
        train(net, optimizer, range(2))
        gc.collect()
        assert flags(net) == [False, False, True, True]
        del optimizer
        gc.collect()
        assert all(flags(net))

    def test_parameters_die_with_model_and_optimizer(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        dead = weakref.ref(optimizer), weakref.ref(net.trunk.weight)
        del net, optimizer
        gc.collect()
        assert [reference() for reference in dead] == [None, None]

    def test_a_copy_knows_what_was_trainable(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        for other_net, other in (copy.deepcopy((net, optimizer)), pickle.loads(pickle.dumps((net, optimizer)))):
            assert flags(other_net) == [False, False, True, True]
            other.close()
            assert all(flags(other_net))
        assert flags(net) == [False, False, True, True]


@pytest.fixture
def gloo() -> Iterator[None]:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("gloo")
class TestDistributedDataParallel:
    """Reports 12, 13: waiting for gradients that never come; ranks that drift apart."""

    def test_plain_is_refused_early(self) -> None:
        wrapped = DistributedDataParallel(network())
        net: Any = wrapped.module
        with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
            sgd(net)

    def test_plain_and_wrapped_later_is_refused_at_the_first_step(self) -> None:
        net = network()
        optimizer = sgd(net)
        wrapped = DistributedDataParallel(net)
        torch.autograd.backward(loss(wrapped, 0))
        with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
            optimizer.step()

    @pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true")
    def test_static_graph_is_refused(self) -> None:
        wrapped = DistributedDataParallel(network(), find_unused_parameters=True, static_graph=True)
        net: Any = wrapped.module
        with pytest.raises(RuntimeError, match="static_graph"):
            sgd(net)

    def test_the_recipe_trains_as_without(self) -> None:
        net, twin = network(), network()
        wrapped = DistributedDataParallel(net, find_unused_parameters=True)
        optimizer, plain = sgd(net), sgd(twin)
        for t in range(7):
            torch.autograd.backward(loss(wrapped, t))
            optimizer.step()
            optimizer.zero_grad()
        train(twin, plain, range(7))
        assert same(net, twin)

    def test_wrapped_while_slow_parts_are_off_is_refused(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        other = copy.deepcopy(net).requires_grad_(True)
        resumed = sgd(other)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        wrapped = DistributedDataParallel(other, find_unused_parameters=True)
        torch.autograd.backward(loss(wrapped, 2))
        with pytest.raises(RuntimeError, match="never averages"):
            resumed.step()

    def test_resumed_in_mid_cycle_after_wrapping_is_right(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        other = copy.deepcopy(net).requires_grad_(True)
        wrapped = DistributedDataParallel(other, find_unused_parameters=True)
        resumed = sgd(other)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for t in range(2, 7):
            torch.autograd.backward(loss(wrapped, t))
            resumed.step()
            resumed.zero_grad()
        train(net, optimizer, range(2, 7))
        assert same(net, other)

    def test_nothing_is_refused_where_no_flag_is_switched(self) -> None:
        for options in ({"k": 1}, {"gradient": "mean"}):
            wrapped = DistributedDataParallel(network())
            net: Any = wrapped.module
            optimizer = sgd(net, **options)
            for t in range(3):
                torch.autograd.backward(loss(wrapped, t))
                optimizer.step()
                optimizer.zero_grad()


class TestWeightDecay:
    """Report 14: decay that moves parameters without a gradient. Ours enters the direction, once per gradient."""

    def test_no_gradient_no_decay(self) -> None:
        for make, drift in ((sgd, True), (adamw, True), (sgd, False)):
            net = network()
            optimizer = make(net, weight_decay=0.5, drift=drift)
            before = net.trunk.weight.clone()
            for _ in range(5):
                net.head.weight.grad = torch.ones_like(net.head.weight)
                optimizer.step()
            assert torch.equal(net.trunk.weight, before)

    def test_a_cycle_decays_by_k_times_the_lr(self) -> None:
        net = network(torch.float64)
        optimizer = adamw(net, weight_decay=0.5)
        before = net.trunk.weight.detach().clone()
        for _ in range(3):
            for p in net.parameters():
                p.grad = torch.zeros_like(p)
            optimizer.step()
        torch.testing.assert_close(net.trunk.weight.detach(), before * (1 - 3 * 0.01 * 0.5))


class TestWrapping:
    """Reports 15-17: wrappers that are no optimizer."""

    def test_groups_state_and_hooks_are_torchs_own(self) -> None:
        net = network()
        base = torch.optim.SGD(net.head.parameters(), lr=0.1, momentum=0.9)
        other = torch.optim.AdamW(net.trunk.parameters(), lr=0.1)
        optimizer = mrreg.Multirate([(base, 1), (other, 2)])
        train(net, optimizer, range(3))
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert optimizer.param_groups == base.param_groups + other.param_groups
        assert all(a is b for a, b in zip(optimizer.param_groups, base.param_groups + other.param_groups, strict=True))
        assert optimizer.state is base.state is other.state
        assert optimizer.defaults["lr"] == 0.1
        assert optimizer._optimizer_step_post_hooks == {}

    def test_state_of_a_base_that_fills_it_early_is_kept(self) -> None:
        net = network()
        optimizer = mrreg.Multirate([(torch.optim.Adagrad(net.parameters(), lr=0.1, initial_accumulator_value=0.5), 1)])
        assert torch.equal(optimizer.state[net.head.bias]["sum"], torch.full((2,), 0.5))

    def test_the_number_of_groups_is_fixed(self) -> None:
        net = network()
        optimizer = sgd(net)
        with pytest.raises(RuntimeError, match=r"add_param_group: .*fixed"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        assert len(optimizer.param_groups) == 2


def test_a_hybrid_scheme_under_the_scaler_records_inf_checks_at_every_step() -> None:
    """Report 19: "No inf checks were recorded" where a second optimizer steps without gradients."""
    net = network()
    optimizer = hybrid(net)
    scaler = torch.amp.GradScaler("cpu")
    for t in range(8):
        torch.autograd.backward(scaler.scale(loss(net, t)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert clock(optimizer) == 8


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.body, self.first(x), use_reentrant=self.use_reentrant)
        out: Tensor = self.head(hidden)
        return out


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("fast", [["body", "head"], ["body"]])
def test_reentrant_checkpointing_below_a_frozen_layer(use_reentrant: bool, fast: list[str]) -> None:
    """Report 20: silent None gradients."""
    net = Checkpointed(use_reentrant)
    outside = [] if "head" in fast else [p.requires_grad_(True) for p in net.head.parameters()]
    optimizer = mrreg.MultirateSGD(
        [p for p in net.parameters() if all(p is not other for other in outside)],
        lr=0.1,
        k=3,
        fast=[getattr(net, name) for name in fast],
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", mrreg.NoEffectWarning)
        for t in range(8):
            torch.autograd.backward(loss(net, t))
            optimizer.step()
            net.zero_grad()
    ours = [str(each.message) for each in caught if issubclass(each.category, mrreg.NoEffectWarning)]
    assert len(ours) == int(use_reentrant), ours
    assert all("use_reentrant=False" in message for message in ours)


def test_a_fast_layer_below_the_slow_ones_trains_as_with_everything_on() -> None:
    net, twin = network(), network()
    optimizers = []
    for each in (net, twin):
        optimizers.append(mrreg.MultirateSGD(each.parameters(), lr=0.1, k=3, fast=each.trunk, momentum=0.9))
        train(each, optimizers[-1], range(8), (lambda: twin.requires_grad_(True)) if each is twin else None)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))


def test_saving_time_is_what_backward_reaches() -> None:
    """Report 22: at a fast step no gradient of the trunk is computed, nor of its input."""
    net = Net()
    optimizer = sgd(net)
    train(net, optimizer, range(1))
    hidden = net.trunk(torch.randn(3, 4))
    assert not hidden.requires_grad
    assert net.head(hidden).requires_grad
