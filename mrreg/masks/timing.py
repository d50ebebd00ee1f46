"""The seconds that masked and joint steps take, measured as they run."""

import time
from collections import deque
from statistics import median
from typing import Any

import torch
from torch import nn

from mrreg.errors import warn


class StepTimer:
    """Times the steps of one optimizer; the drawing of a cycle, after its last step, does not count."""

    def __init__(self) -> None:
        self.begun: Any = None  # device and time of the first training forward of a step
        self._seconds = deque[float](maxlen=100), deque[float](maxlen=100)  # of joint and of masked steps
        self._open = deque[Any](maxlen=100)  # steps that a GPU may have yet to finish: phase, begin, end
        self._compared = False

    def begin(self, module: nn.Module) -> None:
        """Note the first training forward of a step."""
        self.begun = self.begun or next(((p.device, _now(p.device)) for p in module.parameters()), None)

    def end(self, phases: set[bool]) -> None:
        """Note the end of a step, which counts where all masks are in one phase."""
        begun, self.begun = self.begun, None
        if begun and begun[1] and len(phases) == 1 and (end := _now(begun[0])):
            self._open.append((phases.pop(), begun[1], end))
            while self._open and (isinstance(end := self._open[0][2], float) or end.query()):
                masked, begin, _ = self._open.popleft()
                self._seconds[masked].append(end - begin if isinstance(end, float) else begin.elapsed_time(end) / 1e3)

    def medians(self) -> dict[str, float]:
        """Return the median seconds of joint and of masked steps, as far as they are known."""
        return {f"{kind}_seconds": median(s) for kind, s in zip(("joint", "masked"), self._seconds, strict=True) if s}

    def compare(self) -> None:
        """Warn once that masked steps are not faster."""
        if not self._compared and len(self._seconds[0]) >= 3 and len(self._seconds[1]) >= 50:
            self._compared, (joint, masked) = True, self.medians().values()
            problem = f"masked steps take {masked:.3g} s, joint ones {joint:.3g} s: too small for gathering to pay"
            if masked >= joint:
                warn(f"attach: {problem}. Take larger layers or batches, `exclude` small ones, or use nn.Dropout.")


def _now(device: torch.device) -> Any:
    """Return the time, or on a GPU an event, which nothing waits for; None where neither can be had."""
    if device.type == "cpu":
        return time.perf_counter()
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
