"""The engine: what it refuses, what it says of itself, what is a step, and how parts move."""

import copy
import warnings
from typing import Any

import pytest
import torch
from helpers.optimizers import TORCH, adamw, clock, hybrid, loss, mixed, network, same, sgd, train
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

import mrreg

pytestmark = pytest.mark.filterwarnings("ignore:.*no forward of the model was seen")  # gradients are put in by hand


def one(*shape: int) -> Parameter:
    return Parameter(torch.ones(*shape))


def plain(*params: Tensor, lr: float = 0.1, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(params or [one(2)], lr=lr, **options)


class WithoutLr(Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> Any:
        return None


def grouped(p: Tensor | None = None, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD([{"params": [one(2) if p is None else p], **options}], lr=0.1)


REFUSED: list[tuple[type[Exception], Any, dict[str, Any], str]] = [
    (TypeError, 3, {}, r"parts must be a list of pairs .*got 3"),
    (ValueError, [], {}, "at least one pair"),
    (TypeError, [plain()], {}, r"parts\[0\] must be a pair"),
    (TypeError, [("adam", 1)], {}, r"parts\[0\] must be .*Optimizer.*'str'"),
    (TypeError, [(plain(), 1), (plain(), "5")], {}, r"parts\[1\] period must be a whole number.*'5'"),
    (TypeError, [(plain(), True)], {}, "period must be a whole number"),
    (ValueError, [(plain(), 0)], {}, "at least 1, got 0"),
    (ValueError, [(plain(), 5)], {}, "period must be 1 for the fastest part"),
    (ValueError, [(plain(), 1), (plain(), 2), (plain(), 5)], {}, "2 does not divide 5"),
    (ValueError, [(torch.optim.LBFGS([one(2)]), 1)], {}, "LBFGS evaluates the loss several times"),
    (ValueError, [(WithoutLr([one(2)]), 1)], {}, "lr in its groups"),
    (ValueError, [(mrreg.Multirate([(plain(), 1)]), 1)], {}, "instead of nesting"),
    (ValueError, [(grouped(period=2), 3)], {}, "2, as its groups say, got 3"),
    (TypeError, [(grouped(period=None), None)], {}, "period must be a whole"),
    (ValueError, [(plain(lr=0.1), 1), (grouped(lr=None), 2)], {}, r"parts\[1\] must be .*a number as lr in its groups"),
    (TypeError, [(plain(), 1)], {"drift": 1}, "drift must be True or False, got 1"),
    (ValueError, [(plain(), 1)], {"gradient": "average"}, "gradient must be one of .*'average'"),
    (TypeError, [(plain(), 1)], {"gradient": None}, "gradient must be one of"),
    (ValueError, [(plain(), 1), (plain(), 2)], {"gradient": ["mean"]}, "one for each of the 2 parts"),
    (ValueError, [(grouped(slow_lr="x"), 1)], {}, "slow_lr must be one of"),
    (ValueError, [(plain(), 1), (plain(), 2)], {"phase": [1]}, "phase must be one number, or one for each of the 2"),
    (ValueError, [(plain(), 1)], {"phase": -1}, "phase must be a whole number, at least 0, got -1"),
]


@pytest.mark.parametrize(("kind", "parts", "options", "message"), REFUSED)
def test_refused(kind: type[Exception], parts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        mrreg.Multirate(parts, **options)
    assert str(caught.value).startswith("Multirate: ")


def test_a_parameter_in_two_parts_is_refused_and_changes_nothing() -> None:
    parts = [(plain(shared := one(3, 2)), 1), (plain(shared), 5)]
    with pytest.raises(ValueError, match=r"shape \(3, 2\) in parts 0 and 1"):
        mrreg.Multirate(parts, model=nn.ParameterList([shared]))
    assert "period" not in parts[0][0].param_groups[0]


def test_due_and_repr_follow_the_clock() -> None:
    net = network()
    optimizer = hybrid(net)
    seen = []
    train(net, optimizer, range(5), lambda: seen.append(optimizer.due))
    assert seen == [
        (True, False, False),
        (True, True, False),
        (True, False, False),
        (True, True, True),
        (True, False, False),
    ]
    assert str(optimizer).splitlines() == [
        "Multirate (drift=True, 5 steps done",
        "  part 0: AdamW, period 1, 2 tensors, 18 parameters, lr 0.01, due",
        "  part 1: SGD, period 2, 1 tensors, 32 parameters, lr 0.1, 1 of 2",
        "  part 2: RMSprop, period 4, 1 tensors, 8 parameters, lr 0.01, 1 of 4",
        ")",
    ]


def test_metrics_follow_the_clock() -> None:
    net = network()
    optimizer = sgd(net)
    seen = [optimizer.metrics()]
    train(net, optimizer, range(3), lambda: seen.append(optimizer.metrics()))
    assert [m["multirate/step"] for m in seen] == [0, 1, 2, 3]
    assert [m["multirate/part0/due"] for m in seen] == [1, 1, 1, 1]
    assert [m["multirate/part1/due"] for m in seen] == [1, 0, 0, 1]
    assert [m["multirate/part1/phase"] for m in seen] == [0, 1, 2, 0]
    assert [m["multirate/due_share"] for m in seen] == pytest.approx([1, 18 / 58, 18 / 58, 1])
    assert seen[0]["multirate/part1/period"] == 3


def test_a_call_without_any_gradient_is_no_step() -> None:
    for make in (sgd, adamw, hybrid):
        net, twin = network(), network()
        optimizer, other = make(net), make(twin)
        for t in range(6):
            optimizer.step()
            assert clock(optimizer) == t
            train(net, optimizer, range(t, t + 1))
            train(twin, other, range(t, t + 1))
        assert same(net, twin)


def test_calls_on_end_without_any_gradient_are_reported_once() -> None:
    optimizer = sgd(network())
    for call in range(7):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        assert ["no parameter had a gradient in 3 calls" in str(each.message) for each in caught] == [True] * (
            call == 2
        )


def test_zero_lr_and_zero_gradients_are_no_step_but_either_alone_is() -> None:
    for lr, gradient, steps in ((0.0, 0.0, 0), (0.0, 1.0, 1), (0.1, 0.0, 1)):
        fast, slow = one(2), one(2)
        optimizer = mrreg.MultirateSGD(nn.ParameterList([slow, fast]), lr=lr, k=2, fast=fast, momentum=0.9)
        for p in (fast, slow):
            p.grad = torch.full_like(p, gradient)
        optimizer.step()
        assert clock(optimizer) == steps
        assert set(optimizer.state[slow]) == {"momentum_buffer"}


@pytest.mark.parametrize("drift", [True, False])
@pytest.mark.parametrize("make", [sgd, adamw])
def test_no_gradient_at_the_sync_step_means_rest(make: Any, drift: bool) -> None:
    """As in torch it is skipped; it does not drift along an old direction either."""
    net = network()
    optimizer = make(net, drift=drift)
    train(net, optimizer, range(3))
    torch.autograd.backward(loss(net, 3))
    net.trunk.bias.grad = None
    before, other = net.trunk.bias.clone(), net.trunk.weight.clone()
    optimizer.step()
    optimizer.zero_grad()
    train(net, optimizer, range(4, 6))
    assert torch.equal(net.trunk.bias, before)
    assert not torch.equal(net.trunk.weight, other)
    train(net, optimizer, range(6, 7))
    assert not torch.equal(net.trunk.bias, before)


def test_a_rate_of_zero_at_the_sync_step() -> None:
    """SGD's direction does not depend on it; other optimizers, and Algorithm 2, are due again at the next step."""
    ways: list[tuple[Any, dict[str, Any], list[int]]] = [
        (sgd, {}, [0, 3]),
        (sgd, {"momentum": 0.0}, [0, 3]),
        (sgd, {"nesterov": True}, [0, 1, 4]),
        (sgd, {"drift": False}, [0, 1, 4]),
        (adamw, {}, [0, 1, 4]),
    ]
    for make, options, syncs in ways:
        net = network()
        optimizer = make(net, **options)
        due = []
        before = net.trunk.weight.clone()
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        for t in range(6):
            due += [t] * optimizer.due[1]
            train(net, optimizer, range(t, t + 1))
            assert torch.equal(net.trunk.weight, before) is (t == 0)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        assert due == syncs


def test_a_warm_up_from_zero_keeps_sync_steps_nested() -> None:
    """All parts that were due are due again at step 1, and go on from there."""
    fast, middle, slow = one(2), one(2), one(2)
    parts = [(plain(fast), 1), (plain(middle), 2), (torch.optim.RMSprop([slow], lr=0.1), 4)]
    optimizer = mrreg.Multirate(parts, model=nn.ParameterList([slow, middle, fast]))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, t / 3))
    due = []
    for _ in range(10):
        due.append(optimizer.due)
        for p in (fast, middle, slow):
            p.grad = torch.ones(2)
        optimizer.step()
        schedule.step()
    assert [t for t, each in enumerate(due) if each[2]] == [0, 1, 5, 9]
    assert all(each[1] for each in due if each[2])


class TestUse:
    """What a newcomer would find out late is said at once."""

    def test_parameters_in_no_part_are_named(self) -> None:
        net = network()
        net.trunk.bias.requires_grad_(False)
        with pytest.warns(mrreg.NoEffectWarning, match="MultirateSGD: 'trunk.weight' of the model are in no part") as w:
            mrreg.MultirateSGD(net.head.parameters(), lr=0.1, k=1, model=net)
        assert w[0].filename == __file__

    @pytest.mark.parametrize("fast", ["trunk", ["trunk.weight"], lambda name, p: name.startswith("trunk")])
    def test_a_fast_part_at_the_beginning_of_the_model(self, fast: Any) -> None:
        with pytest.warns(mrreg.NoEffectWarning, match="the fast part comes before all slow parameters"):
            mrreg.MultirateSGD(network(), lr=0.1, k=3, fast=fast)
        mrreg.MultirateSGD(network(), lr=0.1, k=3, fast=["trunk", "head.bias"])
        mrreg.MultirateSGD(mrreg.biases(net := network()), lr=0.1, k=3, model=net)

    def test_a_class_in_the_place_of_an_instance(self) -> None:
        with pytest.raises(TypeError, match=r"SGD is a class: give an instance, SGD\(...\)"):
            mrreg.Multirate([(torch.optim.SGD, 1)])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="Linear is a class: give an instance"):
            mrreg.MultirateSGD(network().parameters(), model=nn.Linear, k=1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"params must be a module, .* got 'the class Linear'"):
            mrreg.MultirateSGD(nn.Linear, fast="head")  # type: ignore[arg-type]


def test_memory_beyond_the_base() -> None:
    """0 bytes for SGD with momentum; one buffer per slow parameter with drift elsewhere; none without drift."""
    for base in TORCH:
        free = base.kind is torch.optim.SGD and base.options.get("momentum", 0) and not base.options.get("nesterov")
        for drift in (True, False):
            net, twin = network(), network()
            optimizer = mixed(base, drift)(net)
            other = base(twin.parameters())
            train(net, optimizer, range(9))
            train(twin, other, range(9))
            extra = held(optimizer) - held(other)
            slow = sum(p.numel() * p.element_size() for p in net.trunk.parameters())
            assert extra == (0 if free or not drift else slow), base


def held(optimizer: Optimizer) -> int:
    """Bytes of all tensors in the state."""
    tensors = [v for own in optimizer.state.values() for v in own.values() if isinstance(v, Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors if t.dim() > 0)


def test_a_period_may_change_and_counts_from_the_next_sync_step() -> None:
    net = network()
    optimizer = sgd(net, k=2)
    syncs = []
    for t in range(16):
        if t == 3:
            optimizer.param_groups[1]["period"] = 5
        if optimizer.due[1]:
            syncs.append(t)
        train(net, optimizer, range(t, t + 1))
    assert syncs == [0, 2, 4, 9, 14]


def test_sync_steps_stay_nested_while_periods_change() -> None:
    fast, middle, slow = one(2), one(2), one(2)
    optimizer = mrreg.Multirate(
        [(plain(fast), 1), (plain(middle), 2), (plain(slow), 4)], model=nn.ParameterList([slow, middle, fast])
    )
    due = []
    for t in range(17):
        if t == 1:
            optimizer.param_groups[1]["period"] = 4
        if t == 5:
            optimizer.param_groups[2]["period"] = 8
        due.append(optimizer.due)
        for p in (fast, middle, slow):
            p.grad = torch.ones(2)
        optimizer.step()
    assert [t for t, each in enumerate(due) if each[2]] == [0, 4, 8, 16]
    assert [t for t, each in enumerate(due) if each[1]] == [0, 2, 4, 8, 12, 16]


UNFIT = [(0, ValueError), ("5", TypeError), (True, TypeError), (3, ValueError), (1.0, TypeError)]


@pytest.mark.parametrize(("period", "kind"), UNFIT)
def test_a_period_that_does_not_fit_is_refused_before_anything_moves(period: Any, kind: type[Exception]) -> None:
    net = network()
    optimizer = hybrid(net)
    optimizer.param_groups[1]["period"] = period
    before = [p.clone() for p in net.parameters()]
    torch.autograd.backward(loss(net, 0))
    with pytest.raises(kind, match="period"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert clock(optimizer) == 0


def test_float32_is_as_exact_as_torch() -> None:
    """At lr 1e-5 and k = 10, after 1,000 steps: the drifted parameters against float64, as torch.optim.SGD's are."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4000, generator=generator)
    noise = torch.randn(1000, 4000, generator=generator)

    def run(dtype: torch.dtype, k: int) -> Tensor:
        slow, fast = Parameter(start.to(dtype)), Parameter(torch.zeros(1, dtype=dtype))
        optimizer = mrreg.MultirateSGD(nn.ParameterList([slow, fast]), lr=1e-5, k=k, fast=fast, momentum=0.9)
        for t in range(1000):
            slow.grad = slow.detach() + noise[t].to(dtype) if t % k == 0 else None
            fast.grad = torch.ones_like(fast)
            optimizer.step()
        return slow.detach().double()

    errors = {k: (run(torch.float32, k) - run(torch.float64, k)).square().mean().sqrt().item() for k in (1, 10)}
    assert errors[10] <= 1.5 * errors[1], errors


def test_words_for_the_gradient_per_part() -> None:
    net = network()
    parts = [(plain(*net.head.parameters()), 1), (plain(net.trunk.weight), 2), (plain(net.trunk.bias), 4)]
    optimizer = mrreg.Multirate(parts, gradient=["sync", "sum", "sync"], model=net)
    train(net, optimizer, range(3))
    loss(net, 3)
    assert [p.requires_grad for p in net.parameters()] == [True, False, True, True]


def test_capture_in_a_cuda_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    optimizer = sgd(net)
    torch.autograd.backward(loss(net, 0))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA graph"):
        optimizer.step()
    assert clock(optimizer) == 0


def test_a_step_without_a_gradient_counts_as_zero_among_the_gathered() -> None:
    fast, slow = one(1), Parameter(torch.zeros(1))
    optimizer = mrreg.MultirateSGD(nn.ParameterList([slow, fast]), lr=1.0, k=3, fast=fast, gradient="mean", drift=False)
    for gradient in (None, 6.0, None, None, None, None, None):
        fast.grad, slow.grad = torch.ones(1), None if gradient is None else torch.full((1,), gradient)
        optimizer.step()
    assert slow.item() == -3 * 6.0 / 3


@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_a_parameter_frozen_among_the_gathered_rests(make: Any, gradient: str) -> None:
    """A whole cycle without a gradient is none, as in torch: neither momentum nor decay moves what the user froze."""
    net = network()
    optimizer = make(net, k=2, gradient=gradient, weight_decay=0.1)
    train(net, optimizer, range(3))
    net.trunk.bias.requires_grad_(False)
    train(net, optimizer, range(3, 5))
    before, other = net.trunk.bias.clone(), net.trunk.weight.clone()
    train(net, optimizer, range(5, 9))
    assert torch.equal(net.trunk.bias, before)
    assert not torch.equal(net.trunk.weight, other)


@pytest.mark.parametrize("base", [name for name in ("Muon", "Adafactor") if hasattr(torch.optim, name)])
@pytest.mark.parametrize("drift", [True, False])
def test_whole_tensors_are_moved_by_any_optimizer(base: str, drift: bool) -> None:
    """At a sync step by the base, k times as far over the cycle; its state advances at sync steps only."""
    kind, k = getattr(torch.optim, base), 3
    start, fast = torch.randn(4, 3), one(2)
    slow, alone = Parameter(start.clone()), Parameter(start.clone())
    parts = [(plain(fast), 1), (kind([slow], lr=0.1), k)]
    optimizer = mrreg.Multirate(parts, drift=drift, model=nn.ParameterList([slow, fast]))
    reference = kind([alone], lr=0.1)
    for t in range(2 * k):
        fast.grad = torch.ones(2)
        slow.grad = torch.full_like(slow, float(t + 1)) if t % k == 0 else None
        before = alone.detach().clone()
        if t % k == 0:
            alone.grad = slow.grad.clone()  # type: ignore[union-attr]
            reference.step()
            with torch.no_grad():
                alone.add_((alone - before) * (k - 1))
        optimizer.step()
        if t % k == k - 1 or not drift:
            torch.testing.assert_close(slow, alone)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)


class TestPhase:
    """A part is due at t with t mod K == phase."""

    @pytest.mark.parametrize("drift", [True, False])
    def test_when_parts_are_due(self, drift: bool) -> None:
        params = [one(2) for _ in range(3)]
        pairs = [(plain(p, momentum=0.9), k) for p, k in zip(params, (1, 2, 4), strict=True)]
        optimizer = mrreg.Multirate(pairs, phase=[0, 1, 2], drift=drift, model=nn.ParameterList(params[::-1]))
        syncs: list[list[int]] = [[], [], []]
        for t in range(12):
            for found, due in zip(syncs, optimizer.due, strict=True):
                found += [t] * due
            for p in params:
                p.grad = torch.ones(2) if p.requires_grad else None
            optimizer.step()
        assert syncs == [list(range(12)), list(range(1, 12, 2)), list(range(2, 12, 4))]

    @pytest.mark.parametrize("word", ["sum", "mean"])
    def test_gathering_k_gradients_and_then_stepping(self, word: str) -> None:
        """As code with an update frequency does at (t + 1) % k == 0; the slow lr is of one step."""
        k, lr, losses = 4, 0.05, []
        for ours in (True, False):
            net = network(torch.float64)
            a = torch.optim.SGD(net.head.parameters(), lr=lr)
            b = torch.optim.SGD(net.trunk.parameters(), lr=lr / k if ours else lr, momentum=0.9)
            both = mrreg.Multirate([(a, 1), (b, k)], gradient=word, drift=False, phase=[0, k - 1]) if ours else None
            for t in range(5 * k + 2):
                torch.autograd.backward(loss(net, t))
                if both is not None:
                    both.step()
                    both.zero_grad()
                    continue
                a.step()
                a.zero_grad()
                if (t + 1) % k == 0:
                    for p in net.trunk.parameters():
                        if p.grad is not None and word == "mean":
                            p.grad /= k
                    b.step()
                    b.zero_grad()
            losses.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-14)


class TwoModes(torch.optim.SGD):
    """Knows two sets of weights, as schedule-free optimizers do."""

    mode = ""

    def train(self) -> None:
        self.mode = "train"

    def eval(self) -> None:
        self.mode = "eval"


def test_train_and_eval_reach_the_parts_that_have_them() -> None:
    fast, middle, slow = one(2), one(2), one(2)
    bases = TwoModes([fast], lr=0.1), plain(middle), TwoModes([slow], lr=0.1)
    model = nn.ParameterList([slow, middle, fast])
    optimizer = mrreg.Multirate(list(zip(bases, (1, 2, 4), strict=True)), model=model)
    for mode in ("eval", "train"):
        getattr(optimizer, mode)()
        assert [base.mode for base in bases if isinstance(base, TwoModes)] == [mode, mode]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_models_are_refused_with_the_remedy() -> None:
    scripted: Any = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))
    remedy = "must be a torch.nn.Module, not a scripted one, got .* Give the module that was scripted"
    with pytest.raises(TypeError, match=f"MultirateSGD: params {remedy}"):
        mrreg.MultirateSGD(scripted, lr=0.1, k=2, fast="1")
    with pytest.raises(TypeError, match=f"audit: model {remedy}"):
        mrreg.audit(scripted, fast="1", example_inputs=torch.ones(1, 2))


def test_a_period_fills_the_groups_that_split_has_marked_slow() -> None:
    net = network()
    optimizer = mrreg.Multirate([(torch.optim.SGD(mrreg.split(net, fast="head"), lr=0.1), 5)], model=net)
    assert [group["period"] for group in optimizer.param_groups] == [1, 5]


class Wrapper(Optimizer):
    """Steps through another optimizer, whose groups it shares."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.filterwarnings("error")
def test_a_wrapper_of_the_optimizer_leaves_the_saving_alone() -> None:
    net = network()
    optimizer, seen = Wrapper(mrreg.MultirateSGD(net, lr=0.1, k=3, fast="head")), []
    for t in range(7):
        torch.autograd.backward(loss(net, t))
        seen.append(sum(p.grad is not None for p in net.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    assert seen == [seen[0], seen[1], seen[1]] * 2 + [seen[0]]
    assert seen[1] < seen[0]


@pytest.mark.parametrize("gradient", ["sync", "mean"])
def test_a_state_that_lacks_directions_is_refused(gradient: str) -> None:
    net = network()
    optimizer = mrreg.MultirateAdamW(net, lr=0.1, k=3, fast="head", gradient=gradient)
    train(net, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    for index in saved["param_groups"][1]["params"]:
        del saved["state"][index]["direction"]
    with pytest.raises(ValueError, match=r"load_state_dict: .* must be saved with direction of every parameter"):
        optimizer.load_state_dict(saved)
