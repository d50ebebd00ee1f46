"""Refusal of data parallelism in which a multirate training would hang or its ranks would drift apart."""

import weakref
from collections.abc import Callable

from torch import Tensor, nn

from mrreg.errors import invalid_argument, invalid_state, quoted

DDP = nn.parallel.DistributedDataParallel
SHARD_OUTSIDE = "Apply fully_shard to the MultirateMask or to a module around it."
ENGINES = ("torch.distributed.", "deepspeed.runtime", "fairscale.", "megatron.", "colossalai.")

_unaveraged: "weakref.WeakKeyDictionary[nn.Module, frozenset[int]]" = weakref.WeakKeyDictionary()


def check_model(where: str, model: nn.Module, switches: bool) -> None:
    """Refuse a model in a wrapper that does not fit; with `switches`, parameters will be without gradients."""
    for module in model.modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
            remedy = "It replaces parameters by flat ones: use torch.distributed.fsdp.fully_shard (FSDP2)."
            raise invalid_argument(TypeError, where, "model", "without FSDP1", "FullyShardedDataParallel", remedy)
        if isinstance(module, DDP):
            check_wrapper(where, module, switches)


def check_wrapper(
    where: str, wrapper: DDP, switches: bool, trains: Callable[[Tensor], bool] = lambda p: p.requires_grad
) -> None:
    """Refuse a DistributedDataParallel that would hang, or that leaves parameters that train alone."""
    if switches and (wrapper.static_graph or not wrapper.find_unused_parameters):
        problem = "DistributedDataParallel waits for a gradient of every parameter, and slow ones mostly have none"
        remedy = "Build it with find_unused_parameters=True and without static_graph, or use fully_shard."
        raise invalid_state(where, problem, remedy)
    left = unaveraged(wrapper)
    if left and (lost := [name for name, p in wrapper.module.named_parameters() if id(p) in left and trains(p)]):
        problem = (
            f"DistributedDataParallel was built while {quoted(lost)} had requires_grad=False, and never averages their "
            "gradients over the ranks"
        )
        remedy = "Make everything trainable that will ever train, then wrap the model, then build the optimizer."
        raise invalid_state(where, problem, remedy)


def unaveraged(wrapper: DDP) -> frozenset[int]:
    """Return the ids of parameters whose gradients a wrapper never averages: fixed at its construction."""
    if wrapper not in _unaveraged:
        buckets = wrapper.reducer._get_zeros_like_grad_buckets()
        averaged = {id(p) for bucket in buckets for p in bucket.parameters()}
        _unaveraged[wrapper] = frozenset(map(id, wrapper._module_parameters)) - averaged
    return _unaveraged[wrapper]


def is_fully_sharded(module: nn.Module) -> bool:
    """Return True if `fully_shard` or FSDP1 was applied to this very module."""
    return any(kind.__name__ in {"FSDPModule", "FullyShardedDataParallel"} for kind in type(module).__mro__)


def check_engine(where: str, argument: str, optimizer: object) -> None:
    """Refuse optimizers of engines that keep parameters or states elsewhere."""
    for kind in type(optimizer).__mro__:
        if f"{kind.__module__}.".startswith(ENGINES):
            remedy = "It keeps copies or shards of its own: use fully_shard or DistributedDataParallel."
            rule = "an optimizer of the model's own parameters"
            raise invalid_argument(TypeError, where, argument, rule, type(optimizer).__name__, remedy)
