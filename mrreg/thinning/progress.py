"""A line on standard error that says how far a long call has got."""

import sys
import time

PATIENCE = 5.0  # seconds without a word


class Progress:
    """Shows the current stage, once a call has taken longer than a few seconds.

    Args:
        name: Of the call.
    """

    def __init__(self, name: str) -> None:
        self._name, self._began, self._width = name, time.monotonic(), 0

    def __call__(self, doing: str) -> None:
        """Show the next stage."""
        seconds = time.monotonic() - self._began
        if seconds > PATIENCE:
            line = f"{self._name}: {doing} ({seconds:.0f} s)"
            self._width = max(self._width, len(line))
            print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        """Leave the line."""
        if self._width:
            print(file=sys.stderr)  # noqa: T201
