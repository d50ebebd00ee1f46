"""Where masks are in their cycle: whole numbers in every group of the optimizer that drives them."""

from collections.abc import Iterable, Mapping
from typing import Any

from mrreg.checks import whole
from mrreg.errors import bad

CLOCK, CYCLE, SEED = "mask_clock", "mask_k", "mask_seed"  # completed steps; k, 0 where masks have several; of `attach`
LEAST = {CLOCK: 0, CYCLE: 0, SEED: 0}


def phase(where: str, groups: Iterable[Mapping[str, Any]], seed: int, ks: Iterable[int]) -> tuple[int, int, int]:
    """Clock, seed and k that the groups of an optimizer say; at the start of training they say nothing.

    `ks` are those of the masks that are there. A k of 0 leaves them as they are.
    """
    found = [{key: group[key] for key in LEAST if key in group} for group in groups]
    found = [each for each in found if each]  # a group that was added since the last step has none yet
    if not found:
        return 0, seed, 0
    if any(each != found[0] for each in found) or len(found[0]) < len(LEAST):
        rule = f"complete and the same in all groups: {', '.join(LEAST)}"
        raise bad(ValueError, where, "the phase of the masks", rule, found)
    clock, k, seed = (whole(where, key, found[0][key], least) for key, least in LEAST.items())
    if k == 0 and len(set(ks)) == 1:
        remedy = "Build the masks with the values of k that they were saved with."
        raise bad(ValueError, where, CYCLE, f"{next(iter(ks))}, as the masks say", "0, of masks with several k", remedy)
    return clock, seed, k
