"""Activation checkpointing inside a masked module: refused, because it recomputes when the mask is off."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.errors import invalid_state
from mrreg.module_utils import is_stock, tensors_in

PROBLEM = "activation checkpointing inside a masked module recomputes on unmasked weights, with wrong gradients"
REMEDY = "Put the checkpoint around the MultirateMask instead, or mask the layers inside the checkpointed part."


def _refusal() -> RuntimeError:
    return invalid_state("MultirateMask", PROBLEM, REMEDY)


@contextmanager
def refuse_checkpointing(module: nn.Module, weights: Iterable[Tensor]) -> Iterator[Callable[[Any], Any]]:
    """Run a masked forward so that a checkpoint inside raises; the yielded function looks at the output.

    Both forms of torch.utils.checkpoint are found while the forward runs: the usual one needs hooks on saved tensors,
    the reentrant one leaves its node in the graph. Looking for it takes long, so that layers of torch are spared it.
    """
    hooked = nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    if torch.compiler.is_compiling() or (not hooked and all(map(is_stock, module.modules()))):
        yield lambda output: output
        return
    first = min((w.grad_fn._sequence_nr() for w in weights if w.grad_fn is not None), default=None)
    before = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    torch._C._autograd._saved_tensors_hooks_disable(str(_refusal()), fail_if_non_empty=False)
    try:
        yield lambda output: output if first is None else _without_reentrant(output, first)
    finally:
        if before is None:
            torch._C._autograd._saved_tensors_hooks_enable()
        else:
            torch._C._autograd._saved_tensors_hooks_disable(before, fail_if_non_empty=False)


def _without_reentrant(output: Any, first: int) -> Any:
    """The output, if no reentrant checkpoint lies between it and the nodes made before `first`."""
    pending = [t.grad_fn for t in tensors_in(output) if t.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if node.name() == "CheckpointFunctionBackward":
            raise _refusal()
        for below, _ in node.next_functions:
            if below is not None and below not in seen and below._sequence_nr() >= first:
                seen.add(below)
                pending.append(below)
    return output
