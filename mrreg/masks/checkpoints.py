"""Refuse activation checkpointing of masked weights inside a masked module.

A checkpoint recomputes its part during the backward pass, when the masked forward has ended and the module's own
weights are back in place: the gradients would be wrong without a word. A checkpoint around the mask is right, since
it recomputes the whole masked forward; so is one inside that uses no masked weight.
"""

import traceback
from typing import Any

import torch
from torch.utils import checkpoint

from mrreg.errors import invalid_state
from mrreg.module_utils import tensors_in


class CheckpointGuard:
    """Watches one masked forward; it is told whenever the module reads a masked weight.

    Args:
        where: Who masks, for errors.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._recording = _recording()
        self._grad_enabled = torch.is_grad_enabled()
        self._read_without_grad = False
        self._first = torch.autograd._get_sequence_nr()  # of what the forward adds to the graph

    def note_read(self) -> None:
        """Raise if a non-reentrant checkpoint is being recorded: it has put hooks on saved tensors since the start."""
        recording = _recording()
        if recording and recording != self._recording:
            raise self._refusal()
        self._read_without_grad |= self._grad_enabled and not torch.is_grad_enabled()

    def check_output(self, output: Any) -> None:
        """Raise if a reentrant checkpoint lies in the graph that the forward has made.

        Such a checkpoint runs its part without gradients, as other code may do; only its node in the graph tells.
        """
        if not self._read_without_grad:
            return
        pending = [t.grad_fn for t in tensors_in(output) if t.grad_fn is not None]
        seen = set(pending)
        while pending:
            node = pending.pop()
            if node.name() == "CheckpointFunctionBackward":
                raise self._refusal()
            for below, _ in node.next_functions:
                if below is not None and below not in seen and below._sequence_nr() >= self._first:
                    seen.add(below)
                    pending.append(below)

    def _refusal(self) -> RuntimeError:
        problem = "activation checkpointing inside a masked module recomputes on unmasked weights, with wrong gradients"
        remedy = "Put the checkpoint around the MultirateMask instead, or mask the layers inside it."
        if self._where == "thin":
            problem = "activation checkpointing inside a thin model recomputes on whole weights, with wrong gradients"
            remedy = "Switch it off, or make the modules thin that it is put around, one by one."
        return invalid_state(self._where, problem, remedy)


def _recording() -> object:
    """Return a mark that differs from one non-reentrant checkpoint that is being recorded to the next, or nothing."""
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):  # before torch 2.8: who is calling
        frames = (frame for frame, _ in traceback.walk_stack(None))
        return sum(frame.f_code.co_filename == checkpoint.__file__ for frame in frames)
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks if hooks is not None and hooks[0].__module__ == checkpoint.__name__ else None
