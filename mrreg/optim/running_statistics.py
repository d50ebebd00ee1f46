"""Policies for the running statistics of BatchNorm layers in slow parts."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from mrreg.errors import check, check_type, invalid_state
from mrreg.module_utils import may_be_differentiated
from mrreg.optim.clock import is_due
from mrreg.optim.multirate import Multirate

WHERE = "batch_norm"
STATISTICS = ("every", "sync", "never")


class StatisticsGate:
    """Hooks around the forward of one layer, which is as its user left it before and after."""

    def __init__(self, policy: str = "", owners: Iterable[int] = ()) -> None:
        self.policy, self.owners = policy, owners  # none in a copy of the model
        self.moves = True  # statistics move in training
        self._switch = "training" if policy == "never" else "track_running_stats"
        self._is_off = False

    def before(self, layer: _BatchNorm, *_: Any) -> None:
        """Set the layer for one training forward; one without gradients, as of `update_bn`, is none."""
        self._is_off = layer.training and not self.moves and getattr(layer, self._switch) and may_be_differentiated()
        if self._is_off:
            setattr(layer, self._switch, False)

    def after(self, layer: _BatchNorm, *_: Any) -> None:
        """Set it back, even if the forward failed."""
        if self._is_off:
            setattr(layer, self._switch, True)
        self._is_off = False

    def __reduce__(self) -> tuple[type["StatisticsGate"], tuple[()]]:
        return StatisticsGate, ()  # no optimizer drives a copy of the model


class Statistics(ExitStack):
    """Handle of `batch_norm`: `remove()` gives the layers back to torch; also a context manager."""

    def __init__(self, optimizer: Multirate, model: nn.Module, policy: str) -> None:
        super().__init__()
        found = list(_layers(optimizer, model))
        self.layers, self.statistics = tuple(name for name, _, _ in found), policy
        self._gates = [StatisticsGate(policy, owners) for _, _, owners in found]
        for gate, (_, layer, _) in zip(self._gates, found, strict=True):
            self.callback(layer.register_forward_pre_hook(gate.before).remove)
            self.callback(layer.register_forward_hook(gate.after, always_call=True).remove)
        self.callback(optimizer.register_step_post_hook(self._set_phase).remove)
        self.callback(optimizer.register_load_state_dict_post_hook(self._set_phase).remove)
        weakref.finalize(optimizer, self.close).atexit = False
        self._set_phase(optimizer)

    def remove(self) -> None:
        """Leave the optimizer and the model without a trace; a second call does nothing."""
        self.close()

    def _set_phase(self, optimizer: Optimizer, *_: Any) -> None:
        """Set every layer for the phase that the groups say: a graph is compiled for each, and not for each step."""
        for gate in self._gates:
            due = any(is_due(optimizer.param_groups[i]) for i in gate.owners)
            gate.moves = self.statistics == "every" or (self.statistics == "sync" and due)


def batch_norm(optimizer: Optimizer, model: nn.Module, statistics: str = "every") -> Statistics:
    """Choose when the running statistics of BatchNorm layers in slow parts move.

    torch moves them at every forward in training mode; fast layers, evaluation mode and forwards without gradients (of
    `update_bn`) stay so. Update of the statistics r of a slow layer by those b of the batch, with momentum m:

        r <- (1 - m) * r + m * b      "every": always; "sync": at sync steps of its part; "never": not at all

    With "every" and "sync" b normalizes the batch; with "never" r does: a frozen BatchNorm whose weight and bias train.
    With "sync" r averages over the same number of updates, hence over k times as many steps.

    A layer is slow if all its parameters had a period above 1 at construction; its sync steps are those of any of them.
    A layer without parameters in the optimizer (affine=False, or frozen) goes with the nearest module before it in
    `model.modules()` that has some or, if there is none, with the first one after it.

    Args:
        optimizer: A `Multirate`, also in Accelerate's or Lightning's wrapper.
        model: The model, with BatchNorm1d to 3d or SyncBatchNorm layers.
        statistics: "every", "sync" or "never".

    Returns:
        A handle and context manager: `remove()` takes it back, `layers` names slow layers, `statistics` is the policy.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If `statistics` is another word, the model has no BatchNorm layer with running statistics, or none
            of its parameters is in the optimizer.
        RuntimeError: If a layer has a policy already.

    Example:
        >>> import mrreg, torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = mrreg.MultirateSGD(model, lr=1e-3, k=5, fast="3", momentum=0.9)
        >>> handle = mrreg.batch_norm(optimizer, model, statistics="sync")
        >>> for _ in range(6):
        ...     model(torch.randn(3, 4)).square().mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> int(model[1].num_batches_tracked), handle.layers
        (2, ('1',))

    Note:
        The policy is not saved: call this function when you resume too. Convert to SyncBatchNorm before this call.

    References:
        Ioffe and Szegedy, Batch Normalization, ICML 2015; the multirate paper leaves the statistics open.
    """
    inner: Any = optimizer
    while not isinstance(inner, Multirate):
        inner = getattr(inner, "optimizer", None)
        rule = "a Multirate, MultirateSGD or MultirateAdamW, or wrap one as `.optimizer`"
        check(isinstance(inner, Optimizer), WHERE, "optimizer", rule, type(optimizer).__name__, kind=TypeError)
    check_type(WHERE, "model", model, nn.Module, "an nn.Module")
    kind = ValueError if isinstance(statistics, str) else TypeError
    check(statistics in STATISTICS, WHERE, "statistics", f"one of {STATISTICS}", statistics, kind=kind)
    return Statistics(inner, model, statistics)


def _layers(optimizer: Multirate, model: nn.Module) -> Iterator[tuple[str, nn.Module, list[int]]]:
    """Yield the slow BatchNorm layers with running statistics, each with the indices of its parameter groups."""
    groups, modules = optimizer.param_groups, dict(model.named_modules())
    index = {p: i for i, group in enumerate(groups) for p in group["params"]}
    owners = {name: [index[p] for p in m.parameters(recurse=False) if p in index] for name, m in modules.items()}
    layers = {name for name, module in modules.items() if _has_statistics(name, module)}
    last = next(filter(None, owners.values()), [])
    rule = "one with BatchNorm layers that track statistics, and with parameters in the optimizer"
    check(layers and last, WHERE, "model", rule, type(model).__name__)
    for name, own in owners.items():
        last = own or last
        if name in layers and all(groups[i]["initial_period"] > 1 for i in last):
            yield name, modules[name], last


def _has_statistics(name: str, layer: nn.Module) -> bool:
    if not isinstance(layer, _BatchNorm) or not layer.track_running_stats or layer.running_mean is None:
        return False
    gates = [getattr(hook, "__self__", None) for hook in layer._forward_pre_hooks.values()]
    if any(isinstance(gate, StatisticsGate) and gate.policy for gate in gates):
        raise invalid_state(WHERE, f"the layer {name!r} has a policy already", "Call remove() on its handle first.")
    return True
