"""What a training step costs, and which modules its backward pass goes through."""

import time
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook

from mrreg.errors import add_note, check
from mrreg.module_utils import join, tensors_in

WHERE = "audit"
SECONDS = 4.0  # for all repeats of one measurement together
LEAST, MOST = 5, 25  # repeats of a measurement


class Cost(NamedTuple):
    """Seconds of a step."""

    forward: float
    backward: float


class Trace(NamedTuple):
    """What one step does; "" is the model."""

    calls: dict[str, None]  # modules in the order of their first calls
    entered: set[str]  # modules whose output has had a gradient
    arrived: list[Tensor]  # parameters in the order in which their gradients were complete
    flops: dict[str, int]  # of the forward, by module without its children
    backward_flops: int

    def reaches(self, name: str) -> bool:
        """Return True if the backward goes through a module; one that is not called goes with the one around it."""
        while name and name not in self.calls:
            name = name.rpartition(".")[0]
        return name in self.entered


@dataclass(frozen=True)
class Pass:
    """Forward and backward passes in which only some of the parameters that train get a gradient."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss_fn: Callable[[Any], Tensor]
    trained: list[Tensor]
    device: torch.device

    def loss(self, trainable: Set[Tensor]) -> Tensor:
        """Run one forward with gradients for some parameters only, and return its loss."""
        torch.clear_autocast_cache()  # casts of weights that are kept have the flags of an earlier pass
        nn.Module.zero_grad(self.model)
        for p in self.trained:
            p.requires_grad_(p in trainable)
        try:
            output = self.model(*self.args, **self.kwargs)
        except Exception as error:
            add_note(error, f"{WHERE}: raised by the forward in training mode on example_inputs.")
            raise
        loss: Any = self.loss_fn(output)
        single = isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point()
        got = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        check(single, WHERE, "loss_fn", "a function whose result is one number", got, "Take its mean.")
        return loss.sum()  # type: ignore[no-any-return]

    def cost(self, trainable: Set[Tensor]) -> Cost:
        """Time one forward and one backward."""
        now = clock(self.device)
        start = now()
        loss = self.loss(trainable)
        middle = now()
        torch.autograd.backward(loss)
        return Cost(middle - start, now() - middle)

    def compare(self, cases: Mapping[Any, Set[Tensor]]) -> dict[Any, Cost]:
        """Return the median cost of a step for each set of parameters that get gradients, timed in turns."""
        first = sum(sum(self.cost(trainable)) for trainable in cases.values())  # not counted: it warms up
        found: dict[Any, list[Cost]] = {name: [] for name in cases}
        for _ in range(min(max(int(SECONDS / max(first, 1e-9)), LEAST), MOST)):
            for name, trainable in cases.items():
                found[name].append(self.cost(trainable))
        return {name: Cost(*map(median, zip(*seen, strict=True))) for name, seen in found.items()}

    def bytes(self, trainable: Set[Tensor]) -> int:
        """Return the bytes of a step beyond the model: on a GPU the peak, else activations kept plus gradients."""
        if self.device.type == "cuda":
            nn.Module.zero_grad(self.model)
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            torch.autograd.backward(self.loss(trainable))
            return torch.cuda.max_memory_allocated(self.device) - before
        kept: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage  # holds it, so that nothing else gets its address
            return tensor.detach()

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = self.loss(trainable)
        for p in self.model.parameters():
            kept.pop(p.untyped_storage().data_ptr(), None)
        torch.autograd.backward(loss)
        gradients = sum(p.grad.nbytes for p in trainable if p.grad is not None)
        return sum(storage.nbytes() for storage in kept.values()) + gradients

    def trace(self, trainable: Set[Tensor]) -> Trace:
        """Follow one step; FLOPs are those of matrix products, convolutions and attention."""
        from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which takes longer than mrreg

        names = {module: name for name, module in self.model.named_modules()}
        calls: dict[str, None] = {}
        entered: set[str] = set()
        arrived: dict[Tensor, None] = {}

        def called(module: nn.Module, _: Any, output: Any) -> None:
            if (name := names.get(module)) is not None:
                calls.setdefault(name)
                for each in tensors_in(output):
                    if each.requires_grad:
                        each.register_hook(lambda _: entered.add(name))  # type: ignore[no-untyped-call]

        def complete(p: Tensor) -> None:
            arrived.pop(p, None)  # under reentrant checkpointing it may come in parts
            arrived[p] = None

        with ExitStack() as hooks:
            hooks.callback(register_module_forward_hook(called).remove)
            with FlopCounterMode(display=False) as ahead:
                loss = self.loss(trainable)
            for p in trainable:
                hooks.callback(p.register_post_accumulate_grad_hook(complete).remove)  # type: ignore[no-untyped-call]
            with FlopCounterMode(display=False) as back:
                if loss.requires_grad:
                    torch.autograd.backward(loss)
        own = _without_children(self.model, ahead.get_flop_counts())
        return Trace(calls, entered, list(arrived), own, int(back.get_total_flops()))


def clock(device: torch.device) -> Callable[[], float]:
    """Return a clock for work on a device; with one CPU thread it counts time of the process, undisturbed by others."""
    if device.type == "cpu":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    return lambda: torch.accelerator.synchronize(device) or time.perf_counter()  # type: ignore[func-returns-value]


def _without_children(model: nn.Module, counts: Mapping[str, Mapping[Any, int]]) -> dict[str, int]:
    modules, root = dict(model.named_modules(remove_duplicate=False)), type(model).__name__
    total = {name: sum(counts.get(f"{root}.{name}".rstrip("."), {}).values()) for name in modules}
    return {
        name: total[name] - sum(total[join(name, child)] for child, _ in module.named_children())
        for name, module in modules.items()
    }
