"""Checks that run on two ranks: `test_distributed.py` reports each of them as a test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import mrreg
from mrreg.distributed import reduce_due

K = 3
STEPS = 2 * K + 1
Make = Callable[[nn.Module], Optimizer]
Check = Callable[[int], None]
CHECKS: dict[str, Check] = {}
DDP: Any = DistributedDataParallel  # its options come from tables
shard: Any = fully_shard


def check(function: Check) -> Check:
    """Have it run by both ranks."""
    CHECKS[function.__name__] = function
    return function


# models whose layers have odd sizes, so that shards are uneven, one of them empty


def plain_net() -> nn.Sequential:
    """Trunk 0 and 2, head 4."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()


def masked_net(structure: Any = "weight", **options: Any) -> nn.Sequential:
    """The same with masks on the last two layers."""
    net = plain_net()
    for i in (2, 4):
        net[i] = mrreg.MultirateMask(net[i], p=0.4, k=K, structure=structure, **options)
    return net


def hidden_net() -> nn.Sequential:
    """One mask over a pair of layers, large enough that compact steps are chosen."""
    torch.manual_seed(7)
    pair = nn.Sequential(nn.Linear(64, 65), nn.ReLU(), nn.Linear(65, 64))
    return nn.Sequential(nn.Linear(6, 64), mrreg.MultirateMask(pair, p=0.4, k=K, structure="hidden")).double()


def batch(t: int) -> Tensor:
    return torch.randn(64, 6, generator=torch.Generator().manual_seed(t), dtype=torch.float64)


def backward(net: nn.Module, x: Tensor) -> None:
    out = net(x)
    loss = (out.square() * torch.linspace(0.5, 1.5, out.shape[-1], dtype=out.dtype)).mean()
    torch.autograd.backward(loss)


def full(value: Tensor) -> Tensor:
    """A whole tensor from its shards."""
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.detach().clone()


def agree(net: nn.Module, alone: nn.Module, rank: int) -> None:
    """The same parameters, flags and gradients as one process has."""
    for (name, p), q in zip(net.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(full(p), q.detach(), rtol=1e-12, atol=1e-13, msg=name)
        assert p.requires_grad == q.requires_grad, name


def equal_to_one_process(net: nn.Module, alone: nn.Module, make: Make, rank: int, masks: bool = False) -> None:
    """Train on halves of the batches beside a process with all of them."""
    optimizer, other = make(net), make(alone)
    handles = [mrreg.attach(o, n) for o, n in ((optimizer, net), (other, alone)) if masks]
    for t in range(STEPS):
        x = batch(t)
        backward(net, x.chunk(2)[rank])
        backward(alone, x)
        for p, q in zip(net.parameters(), alone.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None and q.grad is not None:
                assert torch.equal(full(p.grad) == 0, q.grad == 0)  # held entries have none
        optimizer.step()
        other.step()
        agree(net, alone, rank)
        optimizer.zero_grad()
        other.zero_grad()
        with torch.no_grad():  # evaluation in between, on all weights
            torch.testing.assert_close(net.eval()(x), alone.eval()(x), rtol=1e-10, atol=1e-12)
        net.train()
        alone.train()
    for handle in handles:
        handle.remove()


def head(net: nn.Module) -> nn.Module:
    inner = net.module if isinstance(net, DistributedDataParallel) else net
    assert isinstance(inner, nn.Sequential)
    return inner[-1]


def sgd(net: nn.Module) -> Optimizer:
    return mrreg.MultirateSGD(mrreg.split(net, fast=head(net)), lr=0.1, k=K, momentum=0.9, weight_decay=0.01)


def nesterov(net: nn.Module) -> Optimizer:
    groups = mrreg.split(net, fast=head(net))
    return mrreg.MultirateSGD(groups, lr=0.1, k=K, momentum=0.9, weight_decay=0.01, nesterov=True)


def algorithm2(net: nn.Module) -> Optimizer:
    return mrreg.MultirateSGD(mrreg.split(net, fast=head(net)), lr=0.1, k=K, momentum=0.9, drift=False)


def adamw(net: nn.Module) -> Optimizer:
    return mrreg.MultirateAdamW(mrreg.split(net, fast=head(net)), lr=0.01, k=K, foreach=True)


def mean(net: nn.Module) -> Optimizer:
    return mrreg.MultirateAdamW(net.parameters(), lr=0.01, k=K, fast=head(net), gradient="mean")


def three(net: nn.Module) -> Optimizer:
    inner = net.module if isinstance(net, DistributedDataParallel) else net
    assert isinstance(inner, nn.Sequential)
    return mrreg.Multirate(
        [
            (torch.optim.AdamW(inner[-1].parameters(), lr=0.01), 1),
            (torch.optim.SGD(inner[2].parameters(), lr=0.1), 2),
            (torch.optim.RMSprop(inner[0].parameters(), lr=0.01, momentum=0.5), 4),
        ]
    )


def langevin(net: nn.Module) -> Optimizer:
    fast, slow = mrreg.split(net, fast=head(net))
    options: dict[str, Any] = {"lr": 0.01, "momentum": 0.5, "temperature": 0.1}
    return mrreg.Multirate([(mrreg.LangevinSGD([fast], **options), 1), (mrreg.LangevinSGD([slow], **options), K)])


ENGINES: tuple[Make, ...] = (sgd, nesterov, algorithm2, adamw, mean, three, langevin)
PLAIN: tuple[Make, ...] = (
    lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True),
)


def masked_and_multirate(net: nn.Module) -> Optimizer:
    """The layers with masks are fast."""
    inner = net.module if isinstance(net, DistributedDataParallel) else net
    assert isinstance(inner, nn.Sequential)
    return mrreg.MultirateSGD(mrreg.split(net, slow=inner[0]), lr=0.1, k=2, momentum=0.9)


# DistributedDataParallel


@check
def ddp_multirate(rank: int) -> None:
    for make in ENGINES:
        equal_to_one_process(DDP(plain_net(), find_unused_parameters=True), plain_net(), make, rank)


@check
def ddp_masks(rank: int) -> None:
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
        for make in PLAIN:
            equal_to_one_process(DDP(masked_net(), **options), masked_net(), make, rank, masks=True)
    for structure in ("input", "output"):
        equal_to_one_process(DDP(masked_net(structure)), masked_net(structure), PLAIN[0], rank, masks=True)
    equal_to_one_process(DDP(hidden_net()), hidden_net(), PLAIN[0], rank, masks=True)


@check
def ddp_masks_and_multirate(rank: int) -> None:
    net = DDP(masked_net(boost=2.0), find_unused_parameters=True)
    equal_to_one_process(net, masked_net(boost=2.0), masked_and_multirate, rank, masks=True)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes of gradients that go through all_reduce."""
    sent = [0]
    original = dist.all_reduce

    def count(value: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent[0] += value.numel() * value.element_size()
        return original(value, *args, **kwargs)

    dist.all_reduce = count  # type: ignore[assignment]
    try:
        yield sent
    finally:
        dist.all_reduce = original


@check
def ddp_sends_what_is_due(rank: int) -> None:
    for bucket_mb, view in ((25, False), (25, True), (1e-6, False)):  # one bucket of all, or one a parameter
        nets = [
            DDP(plain_net(), find_unused_parameters=True, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=view)
            for _ in range(2)
        ]
        nets[1].register_comm_hook(None, reduce_due)
        optimizers = [sgd(net) for net in nets]
        with counted() as sent:
            for t in range(2 * K):
                for net, optimizer in zip(nets, optimizers, strict=True):
                    backward(net, batch(t).chunk(2)[rank])
                    optimizer.step()
                    optimizer.zero_grad()
                for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
                    assert torch.equal(p, q)
        fast = sum(p.numel() for p in head(nets[1]).parameters())
        slow = sum(p.numel() for p in nets[1].parameters()) - fast
        assert sent[0] == 8 * 2 * (K * fast + slow), sent


@check
def ddp_due_only_with_accumulation(rank: int) -> None:
    net, alone = DDP(plain_net(), find_unused_parameters=True), plain_net()
    net.register_comm_hook(dist.group.WORLD, reduce_due)
    optimizer, other = sgd(net), sgd(alone)
    for t in range(STEPS):
        with net.no_sync():
            backward(net, batch(t).chunk(2)[rank])
        backward(net, batch(t + 100).chunk(2)[rank])
        backward(alone, batch(t))
        backward(alone, batch(t + 100))
        for o in (optimizer, other):
            o.step()
            o.zero_grad()
        agree(net, alone, rank)


@check
def ddp_refused(rank: int) -> None:
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True, "static_graph": True}):
        net = DDP(plain_net(), **options)
        for hand_over in (
            lambda net=net: mrreg.split(net, fast="4"),
            lambda net=net: mrreg.split(nn.ModuleDict({"inner": net}), fast="inner.4"),
            lambda net=net: mrreg.biases(net),
            lambda net=net: mrreg.MultirateSGD(net.parameters(), k=K, fast=net.module[4]),
        ):
            with pytest.raises(RuntimeError, match=r"waits for a gradient .* find_unused_parameters=True"):
                hand_over()
        net.cpu()
        mrreg.MultirateSGD(net.parameters(), k=1, fast=net.module[4])  # ordinary training
        del net, hand_over


@check
def ddp_later_refused(rank: int) -> None:
    """A wrapper that comes after the optimizer is found at the first step."""
    net = plain_net()
    optimizer = sgd(net)
    wrapped = DDP(net)
    backward(wrapped, batch(0))
    with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
        optimizer.step()
    assert optimizer.param_groups[0]["clock"] == 0


def frozen_trunk() -> Any:
    net = plain_net()
    net[0].requires_grad_(False)
    return DDP(net, find_unused_parameters=True)


@check
def ddp_trunk_unfrozen_refused(rank: int) -> None:
    words = r"built while .* had requires_grad=False, and never averages .* then wrap the model"
    wrapped = frozen_trunk()
    groups = mrreg.split(wrapped, fast="4")  # still frozen: nothing is wrong yet
    optimizer = mrreg.MultirateSGD(groups, lr=0.1, k=K)
    wrapped.module[0].requires_grad_(True)
    for hand_over in (
        lambda: mrreg.split(wrapped, fast="4"),
        lambda: mrreg.biases(wrapped),
        lambda: mrreg.MultirateSGD(wrapped.parameters(), k=K, fast=wrapped.module[4]),
    ):
        with pytest.raises(RuntimeError, match=words):
            hand_over()
    with pytest.raises(RuntimeError, match=r"'0.bias', '0.weight' had"):
        mrreg.split(wrapped, fast="4")
    before = full(wrapped.module[4].weight)
    backward(wrapped, batch(0))
    with pytest.raises(RuntimeError, match=words):
        optimizer.step()
    assert torch.equal(before, wrapped.module[4].weight)


@check
def ddp_trunk_unfrozen_refused_by_attach(rank: int) -> None:
    net = masked_net()
    net[0].requires_grad_(False)
    wrapped = DDP(net)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    mrreg.attach(optimizer, wrapped).remove()
    net[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match="attach: DistributedDataParallel was built while"):
        mrreg.attach(optimizer, wrapped)


@check
def ddp_built_while_slow_parts_are_off(rank: int) -> None:
    net = plain_net()
    optimizer = sgd(net)
    backward(net, batch(0))
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())  # a resumed training
    wrapped = DDP(net, find_unused_parameters=True)
    backward(wrapped, batch(1))
    with pytest.raises(RuntimeError, match="never averages"):
        optimizer.step()


@check
def ddp_ignores_parameters_on_request(rank: int) -> None:
    net = plain_net()
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["0.weight"])
    mrreg.split(DDP(net, find_unused_parameters=True), fast="4")


# fully_shard


def sharded(net: nn.Sequential, single: bool = False, mesh: tuple[int, ...] = (2,)) -> nn.Sequential:
    """With fully_shard on layers that have parameters and on the whole, or on the whole alone."""
    where = init_device_mesh("cpu", mesh, mesh_dim_names=("replicas", "shards")[-len(mesh) :])
    for layer in () if single else net:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=where)
    fully_shard(net, mesh=where)
    return net


@check
def fsdp_multirate(rank: int) -> None:
    for make in ENGINES:
        equal_to_one_process(sharded(plain_net()), plain_net(), make, rank)
    equal_to_one_process(sharded(plain_net(), single=True), plain_net(), sgd, rank)


@check
def fsdp_masks(rank: int) -> None:
    for single in (False, True):
        for make in PLAIN:
            equal_to_one_process(sharded(masked_net(), single), masked_net(), make, rank, masks=True)
    for structure in ("input", "output"):
        equal_to_one_process(sharded(masked_net(structure)), masked_net(structure), PLAIN[1], rank, masks=True)
    equal_to_one_process(sharded(hidden_net()), hidden_net(), PLAIN[1], rank, masks=True)
    for mesh in ((2, 1), (1, 2)):
        equal_to_one_process(sharded(masked_net(), mesh=mesh), masked_net(), PLAIN[0], rank, masks=True)


@check
def fsdp_masks_cut_along_other_dimensions(rank: int) -> None:
    from torch.distributed.tensor import Shard

    def columns(p: nn.Parameter) -> Shard | None:
        return Shard(1) if p.dim() > 1 and p.shape[1] % 2 == 0 else None

    def build() -> nn.Sequential:
        torch.manual_seed(3)
        layers = [nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(4, 3)]
        kinds: tuple[Any, ...] = ("weight", "input", "output")
        return nn.Sequential(
            *(mrreg.MultirateMask(m, p=0.4, k=K, structure=s) for m, s in zip(layers, kinds, strict=True))
        ).double()

    net = build()
    for layer in net:
        fully_shard(layer, shard_placement_fn=columns)
    equal_to_one_process(net, build(), PLAIN[0], rank, masks=True)


@check
def fsdp_masks_and_multirate(rank: int) -> None:
    equal_to_one_process(sharded(masked_net(rescale=True)), masked_net(rescale=True), masked_and_multirate, rank, True)


@check
def fsdp_steps_communicate_nothing(rank: int) -> None:
    """Masks are drawn, held and boosted, and parts drift, without a word between ranks; fast steps reduce less."""
    net = sharded(masked_net(boost=2.0))
    optimizer = masked_and_multirate(net)
    mrreg.attach(optimizer, net)
    reduced = []
    for t in range(STEPS):
        with CommDebugMode() as said:  # type: ignore[no-untyped-call]
            backward(net, batch(t).chunk(2)[rank])
        counts = said.get_comm_counts()
        reduced.append(sum(count for name, count in counts.items() if "reduce_scatter" in str(name)))
        with CommDebugMode() as said:  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        assert said.get_total_counts() == 0
    assert reduced == [3 if t % 2 == 0 else 2 for t in range(STEPS)]  # one for each layer that is due


@check
def fsdp_masks_put_into_a_sharded_model(rank: int) -> None:
    net = mrreg.mask(sharded(plain_net(), single=True), {"2": 0.4, "4": 0.4}, k=K)
    alone = masked_net()
    optimizer, other = PLAIN[0](net), PLAIN[0](alone)
    mrreg.attach(optimizer, net)
    mrreg.attach(other, alone)
    for t in range(STEPS):
        for each, by, x in ((net, optimizer, batch(t).chunk(2)[rank]), (alone, other, batch(t))):
            by.zero_grad()
            backward(each, x)
            nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            by.step()
        agree(net, alone, rank)


@check
def fsdp_masks_of_other_layers(rank: int) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.first = nn.Linear(6, 6)
            self.conv = mrreg.MultirateMask(nn.Conv1d(3, 6, 2, groups=3), p=0.4, k=K, structure="input")
            self.lstm = mrreg.MultirateMask(nn.LSTM(6, 5), p=0.4, k=K, structure="output")

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x).view(-1, 3, 2)
            out: Tensor = self.lstm(self.conv(x).view(-1, 1, 6))[0][:, 0]
            return out

    def build() -> nn.Module:
        return Layers().double()

    net = build()
    for layer in net.children():
        fully_shard(layer)
    fully_shard(net)
    alone = build()
    optimizer, other = PLAIN[0](net), PLAIN[0](alone)
    mrreg.attach(optimizer, net)
    mrreg.attach(other, alone)
    for t in range(STEPS):  # every rank sees the whole batch: a recurrent layer runs along it
        for each, by in ((net, optimizer), (alone, other)):
            backward(each, batch(t))
            by.step()
            by.zero_grad()
        agree(net, alone, rank)


@check
def fsdp_mixed_precision(rank: int) -> None:
    """Forwards see bfloat16 weights, of which the same entries are slow."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    net: Any = masked_net().float()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in net:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
    alone: Any = masked_net().float()
    optimizer, other = PLAIN[1](net), PLAIN[1](alone)
    mrreg.attach(optimizer, net)
    mrreg.attach(other, alone)
    for t in range(STEPS):
        slow = [alone[i]._bits["weight"] == 0 for i in (2, 4)]
        before = [full(net[i].weight) for i in (2, 4)]
        for each, by in ((net, optimizer), (alone, other)):
            by.zero_grad()
            backward(each, batch(t).float())
            by.step()
        for i, held, old in zip((2, 4), slow, before, strict=True):
            joint = t % K == K - 1
            assert bool(full(net[i].weight.grad)[held].any()) == joint
            assert torch.equal(full(net[i].weight)[held], old[held]) != joint


@check
def fsdp_refused_inside_masks(rank: int) -> None:
    with pytest.raises(ValueError, match=r"module must be without fully_shard inside, got 'FSDPLinear'.*to the Multi"):
        mrreg.MultirateMask(shard(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match="without fully_shard inside, got '1'"):
        mrreg.MultirateMask(nn.Sequential(nn.Linear(3, 3), shard(nn.Linear(3, 2))))
    net: Any = masked_net()
    fully_shard(net[2].module)
    optimizer = PLAIN[0](net)
    with pytest.raises(RuntimeError, match=r"attach: fully_shard was applied to '2.module', inside a mask. Apply"):
        mrreg.attach(optimizer, net)
    assert isinstance(net[2].module, FSDPModule)


@check
def fsdp_after_the_optimizer_refused(rank: int) -> None:
    net = masked_net()
    optimizer = PLAIN[0](net)
    handle = mrreg.attach(optimizer, net)
    sharded(net)
    backward(net, batch(0))
    with pytest.raises(RuntimeError, match=r"attach: fully_shard came after the optimizer"):
        optimizer.step()
    handle.remove()
    inner: Any = masked_net()
    optimizer = PLAIN[0](inner)
    handle = mrreg.attach(optimizer, inner)
    fully_shard(inner[2].module)
    with pytest.raises(RuntimeError, match=r"MultirateMask: the parameters are still sharded in the forward"):
        inner(batch(0))


@check
def fsdp_ranks_agree_on_what_is_a_step(rank: int) -> None:
    """At lr = 0 a step counts if any gradient anywhere is not zero, even one on another rank."""
    net = sharded(nn.Sequential(mrreg.MultirateMask(nn.Linear(2, 2, bias=False), p=0.5, k=K), nn.Linear(2, 2)))
    for make in (sgd, PLAIN[0]):
        optimizer = make(net)
        key = "clock" if make is sgd else "mask_clock"
        if make is not sgd:
            mrreg.attach(optimizer, net)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        for value, clock in ((0, 0), (rank, 1)):
            for p in net.parameters():
                if p.requires_grad:
                    p.grad = torch.zeros_like(p)
                    p.grad.to_local().fill_(value)  # type: ignore[attr-defined]
            optimizer.step()
            assert optimizer.param_groups[0][key] == clock
        if isinstance(optimizer, mrreg.Multirate):
            optimizer.close()


@check
def fsdp1_refused(rank: int) -> None:
    net = FullyShardedDataParallel(plain_net(), use_orig_params=True, device_id=torch.device("cpu"))
    words = r"without FSDP1, got 'FullyShardedDataParallel'.*fully_shard"
    for hand_over in (
        lambda: mrreg.split(net, fast="4"),
        lambda: mrreg.biases(net),
        lambda: mrreg.MultirateSGD(net.parameters(), k=K, fast=list(net.parameters())[-1:]),
        lambda: mrreg.attach(PLAIN[0](net), net),
    ):
        with pytest.raises(TypeError, match=words):
            hand_over()


@check
def zero_refused(rank: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = masked_net()
    zero = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    words = r"optimizer of the model's own parameters, got 'ZeroRedundancyOptimizer'.*fully_shard"
    with pytest.raises(TypeError, match=f"attach: optimizer must be an {words}"):
        mrreg.attach(zero, net)
    with pytest.raises(TypeError, match=rf"Multirate: parts\[0\] must be an {words}"):
        mrreg.Multirate([(zero, 1)])


# torch.distributed.checkpoint


@check
def fsdp_checkpoint(rank: int) -> None:
    """Saved by two ranks at every step of a cycle and loaded into a fresh optimizer: the same training."""
    import tempfile

    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def build(masks: bool, make: Make) -> tuple[nn.Module, Optimizer]:
        net = sharded(masked_net() if masks else plain_net())
        optimizer = make(net)
        if masks:
            mrreg.attach(optimizer, net)
        return net, optimizer

    for masks, make, stop in ((False, sgd, 2), (False, adamw, 4), (True, PLAIN[1], 1), (True, masked_and_multirate, 5)):
        net, optimizer = build(masks, make)
        train(net, optimizer, range(stop), rank)
        before = [full(p) for p in net.parameters()]
        model_state, optimizer_state = get_state_dict(net, optimizer)
        assert all(torch.equal(full(p), old) for p, old in zip(net.parameters(), before, strict=True))
        folder = [tempfile.mkdtemp() if rank == 0 else ""]
        dist.broadcast_object_list(folder)
        state_dict_saver.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])
        other, fresh = build(masks, make)
        model_state, optimizer_state = get_state_dict(other, fresh)
        state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
        state_dict_loader.load(state, checkpoint_id=folder[0])
        set_state_dict(other, fresh, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        train(net, optimizer, range(stop, stop + STEPS), rank)
        train(other, fresh, range(stop, stop + STEPS), rank)
        for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
            assert torch.equal(full(p), full(q)), (name, stop)


def train(net: nn.Module, optimizer: Optimizer, steps: range, rank: int) -> None:
    for t in steps:
        backward(net, batch(t).chunk(2)[rank])
        optimizer.step()
        optimizer.zero_grad()
