"""The clock of masks: completed steps, k and seed, in the groups of the optimizer and nowhere else.

Beside it stand the numbers of units that thin models keep: with other numbers the same clock would draw other units.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mrreg.errors import check, check_int

CLOCK, CYCLE, SEED, KEPT = KEYS = "mask_clock", "mask_k", "mask_seed", "mask_kept"


def read_clock(
    where: str, groups: Iterable[Mapping[str, Any]], seed: int, ks: Sequence[int], kept: Sequence[int]
) -> tuple[int, int, tuple[int, ...]]:
    """Read clock, seed and the k of each mask from the groups of an optimizer, or of a saved one.

    At the start of training they say nothing; `seed`, the k of each mask and the numbers of kept units hold then.
    """
    found = [{key: group[key] for key in KEYS if key in group} for group in groups]
    found = [each for each in found if each]  # a group that was added since the last step has none yet
    if not found:
        return 0, seed, tuple(ks)
    whole = all(each == found[0] for each in found) and {CLOCK, CYCLE, SEED} <= found[0].keys()
    rule = f"complete and the same in all groups: {', '.join(KEYS[:3])}"
    check(whole, where, "the phase of the masks", rule, found)
    saved = found[0].get(KEPT, kept)
    rule = f"{tuple(kept)}, the numbers of units that the groups of the thin model keep"
    remedy = "Make the model thin with the p, or the plan, of the training that was saved."
    check(not kept or tuple(saved) == tuple(kept), where, KEPT, rule, tuple(saved), remedy)
    clock, saved_seed = (check_int(where, key, found[0][key], least=0) for key in (CLOCK, SEED))
    k = found[0][CYCLE]
    each_k = tuple(k) if isinstance(k, tuple | list) else (k,) * len(ks)
    remedy = "Build the masks with the values of k that they were saved with."
    check(len(each_k) == len(ks), where, CYCLE, f"one k for each of {len(ks)} masks", k, remedy)
    return clock, saved_seed, tuple(check_int(where, CYCLE, each) for each in each_k)


def write_clock(
    groups: Iterable[dict[str, Any]], clock: int, seed: int, ks: Sequence[int], kept: tuple[int, ...]
) -> None:
    """Set clock, seed, k and kept units in every group: k is one number where all masks have the same."""
    k = ks[0] if len(set(ks)) == 1 else tuple(ks)
    for group in groups:
        group.update({CLOCK: clock, CYCLE: k, SEED: seed} | ({KEPT: kept} if kept else {}))


def clear_clock(groups: Iterable[dict[str, Any]]) -> None:
    """Remove the entries that `write_clock` set."""
    for group in groups:
        for key in KEYS:
            group.pop(key, None)
