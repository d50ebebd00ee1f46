"""Activation checkpoints: whether a forward records one, and forwards in which they are plain calls."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import checkpoint


def recording() -> object:
    """Return a mark that differs from one non-reentrant checkpoint that is being recorded to the next, or nothing."""
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):  # before torch 2.8: who is calling
        return sum(frame.f_code.co_filename == checkpoint.__file__ for frame, _ in traceback.walk_stack(None))
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks if hooks is not None and hooks[0].__module__ == checkpoint.__name__ else None


@contextmanager
def plain_checkpoints() -> Iterator[None]:
    """Let checkpoints be plain calls, where a graph is read that no backward pass may compute again."""

    def nothing(*_: Any, **__: Any) -> Iterator[None]:
        yield

    names = [name for name in vars(checkpoint) if name.startswith("_checkpoint_without_reentrant_generator")]
    before = {name: vars(checkpoint)[name] for name in [*names, "CheckpointFunction"]}
    vars(checkpoint).update(dict.fromkeys(names, nothing))
    vars(checkpoint)["CheckpointFunction"] = SimpleNamespace(apply=lambda function, _, *args: function(*args))
    try:
        yield
    finally:
        vars(checkpoint).update(before)
