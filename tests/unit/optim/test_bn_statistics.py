"""When running statistics of slow BatchNorm layers move, which layers are slow, and how a policy ends."""

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from helpers.batch_norm import END, POLICIES, K, batch, counts, network, same, slow_trunk, train
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import mrreg


@pytest.mark.parametrize("forwards", [1, 2])
@pytest.mark.parametrize(("statistics", "slow"), [("every", END), ("sync", 3), ("never", 0)])
def test_slow_statistics_move_when_the_policy_says(statistics: str, slow: int, forwards: int) -> None:
    model = network()
    optimizer = slow_trunk(model)
    handle = mrreg.batch_norm(optimizer, model, statistics)
    seen = []
    for t in range(END):
        before = model[1].running_mean.clone()
        train(model, optimizer, [t], forwards)
        seen.append(not torch.equal(before, model[1].running_mean))
    assert counts(model) == (slow * forwards, END * forwards)
    assert sum(seen) == slow
    assert statistics != "sync" or seen == [t % K == 0 for t in range(END)]
    assert handle.layers == ("1",)
    assert model[1].training
    assert model[1].track_running_stats


class Reentrant(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self[0], x, use_reentrant=True)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("wrapper", [nn.Sequential, Reentrant])
@pytest.mark.parametrize("statistics", POLICIES)
def test_forwards_without_gradients_move_statistics_as_torch_does(statistics: str, wrapper: Any) -> None:
    model = network()
    optimizer = slow_trunk(model)
    mrreg.batch_norm(optimizer, model, statistics)
    train(model, optimizer, range(K + 1))  # the next step is no sync step
    plain = copy.deepcopy(model)
    for each in (model, plain):
        torch.optim.swa_utils.update_bn([batch(t) for t in range(4)], wrapper(each))
    assert counts(model) == (4, 4)
    assert same(model, plain)


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda m, o: (m, m), TypeError, "batch_norm: optimizer must be a Multirate, .*, got 'Sequential'"),
        (lambda m, o: (SGD(m.parameters(), lr=0.1), m), TypeError, "got 'SGD'"),
        (lambda m, o: (o, [m]), TypeError, "model must be an nn.Module"),
        (lambda m, o: (o, m, "often"), ValueError, "statistics must be one of .* got 'often'"),
        (lambda m, o: (o, m, 1), TypeError, "statistics must be one of .* got 1"),
        (lambda m, o: (o, m[0]), ValueError, "model must be one with BatchNorm .* got 'Linear'"),
        (lambda m, o: (o, m[0:2].append(nn.BatchNorm1d(6, track_running_stats=False))[2:]), ValueError, "must be one"),
        (lambda m, o: (o, network()), ValueError, "with parameters in the optimizer, got 'Sequential'"),
        (lambda m, o: (o, m) if mrreg.batch_norm(o, m) else (), RuntimeError, "layer '1' has a policy already. Call"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, kind: type[Exception], says: str) -> None:
    model = network()
    with pytest.raises(kind, match=says):
        mrreg.batch_norm(*make(model, slow_trunk(model)))


@pytest.mark.parametrize("end", ["remove", "with", "collected"])
def test_at_the_end_layers_are_torch_s(end: str) -> None:
    model, plain = network(), network()
    optimizer = slow_trunk(model)
    with mrreg.batch_norm(optimizer, model, "sync") as handle:
        train(model, optimizer, range(2))
        if end == "remove":
            handle.remove()
            handle.remove()
        if end == "collected":
            optimizer = None  # type: ignore[assignment]
            gc.collect()
            assert not model[1]._forward_pre_hooks
            assert not model[1]._forward_hooks
    if end != "collected":
        assert not any("batch_norm" in group for group in optimizer.param_groups)
        assert not optimizer._optimizer_step_post_hooks
    assert vars(model[1]).keys() == vars(plain[1]).keys()
    assert len(model[1]._forward_pre_hooks) == (end != "collected")  # the optimizer's own
    before = counts(model)[0]
    model(batch(0))
    assert counts(model)[0] == before + 1
    handle.remove()


def test_layers_follow_the_modules_before_them() -> None:
    """One without parameters, one that is frozen, one before everything, and one whose parts differ."""
    stem, plain = (nn.BatchNorm1d(width, affine=False) for width in (4, 6))
    frozen = nn.BatchNorm1d(6).requires_grad_(False)
    mixed, head = nn.BatchNorm1d(6), nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False))
    model = nn.Sequential(stem, nn.Linear(4, 6), plain, nn.Sequential(nn.Linear(6, 6), frozen), mixed, head)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = mrreg.MultirateSGD(params, lr=0.1, k=K, fast=[head, mixed.weight], model=model)
    assert mrreg.batch_norm(optimizer, model, "sync").layers == ("0", "2", "3.1")
    train(model, optimizer, range(K))
    norms: list[Any] = [stem, plain, frozen, mixed, head[1]]
    assert [int(norm.num_batches_tracked) for norm in norms] == [1, 1, 1, K, K]


def test_a_period_that_changes() -> None:
    model = network()
    optimizer = slow_trunk(model, k=2)
    mrreg.batch_norm(optimizer, model, "sync")
    optimizer.param_groups[1]["period"] = 3
    train(model, optimizer, range(4))
    assert counts(model) == (2, 4)
    optimizer.param_groups[1]["period"] = 1
    train(model, optimizer, range(4, 9))
    assert counts(model) == (2 + 3, 9)  # once more at step 6 and then always


def test_a_layer_of_two_slow_parts_is_at_a_sync_step_with_either() -> None:
    model = network()
    slow = {"0": 4, "1.weight": 4, "1.bias": 2}
    optimizer = mrreg.MultirateSGD(mrreg.split(model, slow=slow), lr=0.05, model=model)
    mrreg.batch_norm(optimizer, model, "sync")
    train(model, optimizer, range(8))
    assert counts(model) == (4, 8)


class Outer(nn.Module):
    """What is compiled."""

    net: nn.Module

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


@pytest.mark.parametrize("statistics", ["sync", "never"])
def test_compiling_makes_at_most_one_graph_per_phase(statistics: str) -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, plain = network(), network()
    counter = CompileCounter()
    outer: Any = Outer()  # of a Sequential itself the hooks would be inside the graph, and not be seen
    outer.net = model
    optimizer = mrreg.MultirateSGD(outer, lr=0.05, k=K, fast=[model[i] for i in (3, 4, 5)], momentum=0.9)
    other = slow_trunk(plain)
    compiled: Any = torch.compile(outer, backend=counter, fullgraph=True)
    mrreg.batch_norm(optimizer, model, statistics)
    mrreg.batch_norm(other, plain, statistics)
    train(compiled, optimizer, range(END))
    train(plain, other, range(END))
    older = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
    reuses = older and statistics != "sync"  # torch 2.11 takes the first graph again where only requires_grad differs
    assert counter.frame_count in ((1, 2) if reuses else (2,))
    assert same(model, plain)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("statistics", POLICIES)
def test_a_copy_of_the_model_is_as_in_torch(copied: Any, statistics: str) -> None:
    model = network()
    optimizer = slow_trunk(model)
    handle = mrreg.batch_norm(optimizer, model, statistics)
    train(model, optimizer, range(2))  # a fast step is next
    other = copied(model)
    before = counts(other)[0]
    other(batch(0))
    assert counts(other)[0] == before + 1
    kept = counts(model)[0]
    model(batch(0))
    assert counts(model)[0] == kept + (statistics == "every")
    again = slow_trunk(other)
    mrreg.batch_norm(again, other, "never")
    other(batch(0))
    assert counts(other)[0] == before + 1
    handle.remove()
