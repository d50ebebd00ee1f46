"""A training under way is kept in a file, so that a crash loses less than a minute of it."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

EVERY = 30.0  # seconds between two checkpoints


@runtime_checkable
class Resumable(Protocol):
    """Anything that gives away its state and takes it back, as torch's own objects do."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> object: ...


class Checkpoint:
    """The file that keeps some objects and torch's random state.

    Args:
        path: None keeps nothing.
        parts: Objects with state, by name.
    """

    def __init__(self, path: Path | None, parts: Mapping[str, Any]) -> None:
        self._path, self._parts = path, parts
        self._last = time.monotonic()

    def due(self) -> bool:
        """Tell whether the last one is too old."""
        return self._path is not None and time.monotonic() - self._last > EVERY

    def save(self) -> None:
        """Replace the file in one step."""
        assert self._path is not None
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        state = {name: part.state_dict() for name, part in self._parts.items()}
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        torch.save({"parts": state, "random": torch.get_rng_state(), "random on cuda": cuda}, temporary)
        temporary.replace(self._path)
        self._last = time.monotonic()

    def load(self) -> None:
        """Go on from the file, where there is one."""
        if self._path is None or not self._path.exists():
            return
        state = torch.load(self._path, weights_only=True)
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        torch.set_rng_state(state["random"])
        if state["random on cuda"]:
            torch.cuda.set_rng_state_all(state["random on cuda"])
