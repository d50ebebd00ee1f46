"""Refusal of data parallelism in which a multirate training would hang or its ranks would drift apart.

DistributedDataParallel waits for a gradient of every parameter unless told otherwise, and only ever averages what was
trainable when it was built. An optimizer sees neither, so the wrappers are asked.
"""

import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.errors import invalid_argument, invalid_state, quoted

DDP = nn.parallel.DistributedDataParallel
SHARD_OUTSIDE = "Apply fully_shard to the MultirateMask or to a module around it."
ENGINES = ("torch.distributed.", "deepspeed.runtime", "fairscale.", "megatron.", "colossalai.")

_unaveraged: "weakref.WeakKeyDictionary[nn.Module, frozenset[int]]" = weakref.WeakKeyDictionary()


def check_model(where: str, model: nn.Module, switches: bool) -> None:
    """Refuse a model in a wrapper that does not fit; with `switches`, parameters will be without gradients."""
    for module in model.modules():
        if _is_fsdp1(module):
            raise _fsdp1(where, "model")
        if isinstance(module, DDP):
            check_wrapper(where, module, switches)


def check_wrapper(where: str, wrapper: DDP, switches: bool) -> None:
    """Refuse a DistributedDataParallel that would hang, or that leaves trainable parameters alone."""
    if switches and (wrapper.static_graph or not wrapper.find_unused_parameters):
        problem = "DistributedDataParallel waits for a gradient of every parameter, and slow ones mostly have none"
        remedy = "Build it with find_unused_parameters=True and without static_graph, or use fully_shard."
        raise invalid_state(where, problem, remedy)
    check_averaged(where, [wrapper], [(n, p) for n, p in wrapper.module.named_parameters() if p.requires_grad])


def check_averaged(where: str, wrappers: Iterable[DDP], trained: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse parameters that train in a wrapper and had requires_grad=False when it was built."""
    left = frozenset().union(*map(unaveraged, wrappers))
    lost = [name for name, p in trained if id(p) in left] if left else []
    if lost:
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


def wrappers_of(where: str, params: set[Tensor]) -> list[DDP]:
    """Find the wrappers around some of the parameters; torch keeps no list of them, and an optimizer sees no module."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    ours = [each for each in _modules() if not params.isdisjoint(each.parameters())]
    if any(_is_fsdp1(each) for each in ours):
        raise _fsdp1(where, "params")
    return [each for each in ours if isinstance(each, DDP)]


def _modules() -> Iterator[nn.Module]:
    """Yield all living wrappers."""
    for each in gc.get_objects():
        if issubclass(type(each), nn.Module) and (issubclass(type(each), DDP) or _is_fsdp1(each)):
            yield each


def _is_fsdp1(module: nn.Module) -> bool:
    return any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__)


def _fsdp1(where: str, argument: str) -> TypeError:
    remedy = "It replaces parameters by flat ones: use torch.distributed.fsdp.fully_shard (FSDP2)."
    return invalid_argument(TypeError, where, argument, "without FSDP1", "FullyShardedDataParallel", remedy)


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


class DDPGuard:
    """Refuses DistributedDataParallel where it would wait for gradients that never come, or never average them."""

    def __init__(self, where: str, groups: list[dict[str, Any]], slow: Iterable[Tensor]) -> None:
        self._where = where
        self._wrappers: weakref.WeakSet[DDP] = weakref.WeakSet()
        self.find_wrappers(groups, slow)

    def find_wrappers(self, groups: list[dict[str, Any]], slow: Iterable[Tensor]) -> None:
        """Find the wrappers around parameters; again before the first step, since a model may be wrapped late."""
        slow = set(slow)
        for wrapper in wrappers_of(self._where, {p for group in groups for p in group["params"]}):
            check_wrapper(self._where, wrapper, switches=not slow.isdisjoint(wrapper.parameters()))
            self._wrappers.add(wrapper)
        self._refuse(slow)

    def check_gradients(self, due: list[dict[str, Any]]) -> None:
        """Refuse gradients that a wrapper does not average, of parameters that somebody has unfrozen since."""
        if self._wrappers:
            self._refuse(p for group in due for p in group["params"] if p.grad is not None)

    def _refuse(self, trained: Iterable[Tensor]) -> None:
        check_averaged(self._where, self._wrappers, [(f"a tensor {tuple(p.shape)}", p) for p in trained])
