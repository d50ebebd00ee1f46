"""Measure the cost of forward and backward passes of a model, and leave the model as it was."""

import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook

from mrreg.errors import invalid_argument
from mrreg.module_utils import tensors_in

WHERE = "audit"
SECONDS = 4.0  # for all repeats of one measurement together
LEAST, MOST = 5, 25  # repeats of a measurement
SCRATCH = 2**24  # entries on which the optimizer's cost per entry is measured


class Cost(NamedTuple):
    """Seconds of the two halves of a step."""

    forward: float
    backward: float


@dataclass(frozen=True)
class TrainingPass:
    """Forward and backward passes in which only some of the parameters that train get a gradient."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss_fn: Callable[[Any], Tensor]
    trained: list[Tensor]

    @property
    def device(self) -> torch.device:
        """Device on which the time is spent."""
        return self.trained[0].device

    def clear(self) -> None:
        """Drop the gradients of the parameters that train."""
        for p in self.trained:
            p.grad = None

    def loss(self, trainable: Set[Tensor]) -> Tensor:
        """Run one forward with gradients for some parameters only, and return its loss."""
        torch.clear_autocast_cache()  # casts of weights that are kept have the flags of an earlier pass
        self.clear()
        for p in self.trained:
            p.requires_grad_(p in trainable)
        loss = self.loss_fn(self.model(*self.args, **self.kwargs))
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            got = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise invalid_argument(
                ValueError, WHERE, "loss_fn", "a function whose result is one number", got, "Take its mean."
            )
        return loss.sum()

    def cost(self, trainable: Set[Tensor]) -> Cost:
        """Measure one forward and one backward."""
        now = clock(self.device)
        start = now()
        loss = self.loss(trainable)
        middle = now()
        backward(loss)
        return Cost(middle - start, now() - middle)


def backward(loss: Tensor) -> None:
    """Run a backward pass (untyped in torch)."""
    loss.backward()  # type: ignore[no-untyped-call]


def clock(device: torch.device) -> Callable[[], float]:
    """Return a clock for work on a device; with one CPU thread it counts time of the process, undisturbed by others."""
    if device.type == "cpu":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def synchronized() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return synchronized


def costs(step: TrainingPass, cases: Mapping[str, Set[Tensor]]) -> dict[str, Cost]:
    """Return the median cost of a step for each set of parameters that get gradients, measured in turns."""
    first = sum(sum(step.cost(trainable)) for trainable in cases.values())  # not counted: it warms up
    repeats = min(max(int(SECONDS / max(first, 1e-9)), LEAST), MOST)
    found: dict[str, list[Cost]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, trainable in cases.items():
            found[name].append(step.cost(trainable))
    return {name: Cost(*map(median, zip(*seen, strict=True))) for name, seen in found.items()}


def update_seconds(step: TrainingPass) -> tuple[float, float]:
    """Return seconds per entry of a step of SGD with momentum and of moving along its buffer, on scratch copies."""
    scratch: list[Tensor] = []
    for p in step.trained:
        scratch.append(torch.zeros_like(p, requires_grad=False))
        if sum(each.numel() for each in scratch) >= SCRATCH:
            break
    for each in scratch:
        each.grad = torch.zeros_like(each)
    optimizer = torch.optim.SGD(scratch, lr=1e-3, momentum=0.9, foreach=True)
    optimizer.step()
    buffers = [optimizer.state[each]["momentum_buffer"] for each in scratch]
    now = clock(step.device)
    steps, drifts = [], []
    for _ in range(LEAST):
        start = now()
        optimizer.step()
        middle = now()
        torch._foreach_add_(scratch, buffers, alpha=-1e-3)
        steps.append(middle - start)
        drifts.append(now() - middle)
    entries = sum(each.numel() for each in scratch)
    return median(steps) / entries, median(drifts) / entries


def step_bytes(step: TrainingPass, trainable: Set[Tensor]) -> int:
    """Return the bytes of a step beyond the model: on a GPU the peak, else activations kept plus gradients."""
    step.clear()
    if step.device.type == "cuda":
        torch.cuda.synchronize(step.device)
        torch.cuda.reset_peak_memory_stats(step.device)
        before = torch.cuda.memory_allocated(step.device)
        backward(step.loss(trainable))
        return torch.cuda.max_memory_allocated(step.device) - before
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step.loss(trainable)
    for p in step.model.parameters():
        kept.pop(p.untyped_storage().data_ptr(), None)
    backward(loss)
    gradients = sum(p.grad.nbytes for p in trainable if p.grad is not None)
    return sum(storage.nbytes() for storage in kept.values()) + gradients


def flops(step: TrainingPass, trainable: Set[Tensor]) -> tuple[dict[str, int], int]:
    """Count FLOPs of the forward by module, without those of its children ("" is the model), and of the backward.

    Counted are matrix products, convolutions and attention (torch.utils.flop_counter).
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which takes longer than mrreg

    with FlopCounterMode(display=False) as ahead:
        loss = step.loss(trainable)
    counts = ahead.get_flop_counts()
    with FlopCounterMode(display=False) as back:
        backward(loss)
    root = type(step.model).__name__

    def total(name: str) -> int:
        return sum(counts.get(f"{root}.{name}" if name else root, {}).values())

    own = {}
    for name, module in step.model.named_modules(remove_duplicate=False):
        children = (f"{name}.{child}" if name else child for child, _ in module.named_children())
        own[name] = total(name) - sum(map(total, children))
    return own, int(back.get_total_flops())


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Set a model to training mode, unless it is, and put everything back at the end.

    That is flags, gradients, buffers, modes, hooks of parameters and random state.
    """
    modes = [(module, module.training) for module in model.modules()]
    tensors = [(p, p.requires_grad, p.grad, p._post_accumulate_grad_hooks) for p in model.parameters()]
    hooks = [(each, dict(each)) for *_, each in tensors if each]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(each, each.clone()) for _, own in buffers for each in own.values() if each is not None]
    gpus = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(gpus), torch.inference_mode(False), torch.enable_grad():
        try:
            for each, _ in hooks:
                each.clear()  # an optimizer may step in them
            if not model.training:
                model.train()
            yield
        finally:
            for each, entries in hooks:
                each.update(entries)
            for module, mode in modes:
                module.training = mode
            for p, flag, grad, _ in tensors:
                p.requires_grad_(flag)
                p.grad = grad
            with torch.no_grad():
                for module, own in buffers:
                    module._buffers.clear()
                    module._buffers.update(own)
                for buffer, value in values:
                    buffer.copy_(value)


@dataclass
class Reach:
    """Way of the fast part's backward pass through a model.

    Args:
        order: The modules in the order of their calls.
        nodes: Nodes of the graph, by the module that has put them there.
        behind: The nodes between each fast parameter and the loss.
    """

    order: list[str] = field(default_factory=list)
    nodes: dict[str, set[Any]] = field(default_factory=dict)
    behind: dict[Tensor, set[Any]] = field(default_factory=dict)


def reach(step: TrainingPass, fast: Set[Tensor]) -> Reach:
    """Follow the backward pass of the fast part through the graph."""
    names = {module: name for name, module in step.model.named_modules()}
    found = Reach()

    def called(module: nn.Module, _: Any, output: Any) -> None:
        if (name := names.get(module)) is not None:
            found.order.append(name)
            found.nodes.setdefault(name, set()).update(each.grad_fn for each in tensors_in(output) if each.grad_fn)

    handle = register_module_forward_hook(called)
    try:
        loss = step.loss(fast)
    finally:
        handle.remove()
    above: dict[Any, list[Any]] = {loss.grad_fn: []} if loss.grad_fn else {}
    stack = list(above)
    while stack:
        node = stack.pop()
        for below, _ in node.next_functions:
            if below is not None:
                if below not in above:
                    above[below] = []
                    stack.append(below)
                above[below].append(node)
    leaves = {node.variable: node for node in above if hasattr(node, "variable")}
    found.behind = {p: _closure(leaves[p], above) for p in step.trained if p in fast and p in leaves}
    if not found.behind:
        remedy = (
            "No gradient reaches it: choose a part that the loss depends on; under activation checkpointing set "
            "use_reentrant=False."
        )
        raise invalid_argument(
            ValueError, WHERE, "fast", "a part that the loss depends on", "one that it does not", remedy
        )
    backward(loss)
    return found


def _closure(start: Any, above: Mapping[Any, list[Any]]) -> set[Any]:
    """Return a node and everything on the way from it to the loss."""
    seen, stack = {start}, [start]
    while stack:
        new = [node for node in above[stack.pop()] if node not in seen]
        seen.update(new)
        stack += new
    return seen
