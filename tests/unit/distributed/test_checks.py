"""What data-parallel wrappers and engines are refused, hooks and shards, in a process group of one process."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

import mrreg
from mrreg.distributed.sharding import any_nonzero, cut, is_sharded, local, local_all
from mrreg.masks.sampling import draw_bits


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def engine(module: str) -> type:
    """An optimizer that an engine has made, in whose place nobody can look."""
    return type("EngineOptimizer", (Optimizer,), {"__module__": module})


@pytest.mark.parametrize(
    "module", ["deepspeed.runtime.zero.stage3", "torch.distributed.optim", "fairscale.optim.oss", "megatron.core"]
)
def test_optimizers_of_engines_are_refused_by_name(module: str) -> None:
    model = nn.Sequential(mrreg.MultirateMask(nn.Linear(3, 2)))
    theirs = engine(module)(model.parameters(), {"lr": 0.1})
    words = "an optimizer of the model's own parameters, got 'EngineOptimizer'. It keeps copies or shards of its own"
    with pytest.raises(TypeError, match=f"attach: optimizer must be {words}"):
        mrreg.attach(theirs, model)
    with pytest.raises(TypeError, match=rf"Multirate: parts\[1\] must be {words}"):
        mrreg.Multirate([(torch.optim.SGD(net().parameters()), 1), (theirs, 2)])


def test_ordinary_optimizers_of_others_are_not_engines() -> None:
    kind = type("Ours", (torch.optim.SGD,), {"__module__": "deepspeeding.optim"})
    mrreg.Multirate([(kind(net().parameters(), lr=0.1), 1)])


def test_tensors_that_are_whole() -> None:
    value = nn.Parameter(torch.arange(6.0).view(2, 3))
    assert not is_sharded(value)
    assert local(value).data_ptr() == value.data_ptr()
    assert local_all([value])[0] is value
    assert cut(value, value) is value
    assert any_nonzero(value)
    assert not any_nonzero(torch.zeros(3))
    assert not any_nonzero(torch.zeros(2, 2).to_sparse())
    assert any_nonzero(torch.eye(2).to_sparse())
    assert draw_bits(torch.zeros(()), (0, 0, 0), 1.0) == 0


@pytest.mark.usefixtures("group")
def test_shards_of_one_rank_are_everything() -> None:
    layer: Any = fully_shard(nn.Linear(5, 3), mesh=init_device_mesh("cpu", (1,)))
    weight, key = layer.weight, (3, 1, 4)
    assert is_sharded(weight)
    assert local(weight).shape == (3, 5)
    assert torch.equal(draw_bits(weight, key, 0.4), draw_bits(torch.empty(3, 5), key, 0.4))
    whole = torch.arange(3.0)[:, None]
    assert torch.equal(cut(whole, weight), whole)
    assert any_nonzero(weight)
    with torch.no_grad():
        torch._foreach_zero_(local_all([weight]))
    assert not any_nonzero(weight)


@pytest.mark.usefixtures("group")
def test_fully_shard_inside_a_mask_is_refused() -> None:
    mesh = init_device_mesh("cpu", (1,))
    inside: Any = fully_shard(nn.Linear(3, 2), mesh=mesh)
    with pytest.raises(
        ValueError, match=r"without fully_shard inside, got 'FSDPLinear'. Apply fully_shard to the Multi"
    ):
        mrreg.MultirateMask(inside)


@pytest.mark.usefixtures("group")
def test_fully_shard_after_the_optimizer_is_refused() -> None:
    model: Any = nn.Sequential(mrreg.MultirateMask(nn.Linear(3, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    torch.autograd.backward(model(torch.ones(1, 3)).sum())
    with pytest.raises(RuntimeError, match="attach: fully_shard came after the optimizer"):
        optimizer.step()
    fresh: Any = mrreg.MultirateMask(nn.Sequential(nn.Linear(3, 2)))
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
    mrreg.attach(optimizer, fresh)
    fully_shard(fresh[0], mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(RuntimeError, match="MultirateMask: the parameters are still sharded in the forward"):
        fresh(torch.ones(1, 3))
