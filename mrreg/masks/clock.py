"""The clock of masks: completed steps, k and seed, in the groups of the optimizer; and the seconds that steps take.

Beside it stand the numbers of units that thin models keep: with other numbers the same clock would draw other units.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from mrreg.errors import check, check_int, warn
from mrreg.masks.mask import Mask

CLOCK, CYCLE, SEED, KEPT = KEYS = "mask_clock", "mask_k", "mask_seed", "mask_kept"


def kept_units(masks: Iterable[Mask]) -> tuple[int, ...]:
    """Return the number of units that each group of thin models keeps."""
    return tuple(group.kept for mask in masks for group in mask.groups)


def read_clock(
    where: str, groups: Iterable[Mapping[str, Any]], seed: int, masks: Sequence[Mask]
) -> tuple[int, int, tuple[int, ...]]:
    """Read clock, seed and the k of each mask from the groups of an optimizer, or of a saved one.

    At the start of training they say nothing; `seed` and what the masks have hold then.
    """
    found = [{key: group[key] for key in KEYS if key in group} for group in groups]
    found = [each for each in found if each]  # a group that was added since the last step has none yet
    if not found:
        return 0, seed, tuple(mask.k for mask in masks)
    whole = all(each == found[0] for each in found) and {CLOCK, CYCLE, SEED} <= found[0].keys()
    rule = f"complete and the same in all groups: {', '.join(KEYS[:3])}"
    check(whole, where, "the phase of the masks", rule, found)
    kept = kept_units(masks)
    saved = tuple(found[0].get(KEPT, kept))
    rule = f"{kept}, the numbers of units that the groups of the thin model keep"
    remedy = "Make the model thin with the p, or the plan, of the training that was saved."
    check(not kept or saved == kept, where, KEPT, rule, saved, remedy)
    clock, saved_seed = (check_int(where, key, found[0][key], least=0) for key in (CLOCK, SEED))
    k = found[0][CYCLE]
    each_k = tuple(k) if isinstance(k, tuple | list) else (k,) * len(masks)
    remedy = "Build the masks with the values of k that they were saved with."
    check(len(each_k) == len(masks), where, CYCLE, f"one k for each of {len(masks)} masks", k, remedy)
    return clock, saved_seed, tuple(check_int(where, CYCLE, each) for each in each_k)


class StepTimer:
    """Times the steps of one optimizer, from end to end; to draw a cycle, after its last step, does not count."""

    def __init__(self) -> None:
        self._begun: Any = None
        self._seconds = deque[float](maxlen=100), deque[float](maxlen=100)  # of joint and of masked steps
        self._open = deque[Any](maxlen=100)  # steps that a GPU may have yet to finish: phase, begin, end
        self._compared = False

    def begin(self, device: torch.device) -> None:
        """Note that a step is over, with all that belongs to it."""
        self._begun = _now(device)

    def end(self, device: torch.device, phases: set[bool]) -> None:
        """Note that the next one ends, which counts where all masks are in one phase."""
        if self._begun and len(phases) == 1:
            self._open.append((phases.pop(), self._begun, _now(device)))
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
            problem = f"masked steps take {masked:.3g} s, joint ones {joint:.3g} s, so that nothing is saved"
            if masked >= joint:
                warn(f"attach: {problem}. Take larger layers, batches or p, `exclude` small layers, or use nn.Dropout.")


def _now(device: torch.device) -> Any:
    """Return the time, or on a CUDA device an event, for which nothing waits."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
