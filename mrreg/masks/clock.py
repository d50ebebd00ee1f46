"""The clock of masks: completed steps, k and seed, in the groups of the optimizer and nowhere else.

Beside it stand the numbers of units that thin models keep: with other numbers the same clock would draw other units.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mrreg.errors import check_int, invalid_argument

CLOCK, CYCLE, SEED = "mask_clock", "mask_k", "mask_seed"
KEPT = "mask_kept"
KEYS = (CLOCK, CYCLE, SEED, KEPT)

Groups = Iterable[Mapping[str, Any]]


def read_clock(
    where: str, groups: Groups, seed: int, ks: Sequence[int], kept: Sequence[int]
) -> tuple[int, int, tuple[int, ...]]:
    """Read clock, seed and the k of each mask from the groups of an optimizer.

    Args:
        where: Place that an error names.
        groups: Of an optimizer, or of a saved one. At the start of training they say nothing.
        seed: Of `attach`, for groups that say nothing.
        ks: The k of each mask that is there.
        kept: Number of units that each group of a thin model keeps.
    """
    found = [{key: group[key] for key in KEYS if key in group} for group in groups]
    found = [each for each in found if each]  # a group that was added since the last step has none yet
    if not found:
        return 0, seed, tuple(ks)
    if any(each != found[0] for each in found) or len(found[0].keys() - {KEPT}) < 3:
        rule = f"complete and the same in all groups: {', '.join(KEYS[:3])}"
        raise invalid_argument(ValueError, where, "the phase of the masks", rule, found)
    saved_kept = found[0].get(KEPT, kept)
    if kept and tuple(saved_kept) != tuple(kept):
        rule = f"{tuple(kept)}, the numbers of units that the groups of the thin model keep"
        remedy = "Make the model thin with the p, or the plan, of the training that was saved."
        raise invalid_argument(ValueError, where, KEPT, rule, tuple(saved_kept), remedy)
    clock, saved_seed = (check_int(where, key, found[0][key], least=0) for key in (CLOCK, SEED))
    return clock, saved_seed, _read_ks(where, found[0][CYCLE], tuple(ks))


def _read_ks(where: str, saved: Any, ks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the k of each mask: one for all, or one each; 0 is what earlier versions saved for several."""
    remedy = "Build the masks with the values of k that they were saved with."
    if isinstance(saved, tuple | list):
        if len(saved) != len(ks):
            raise invalid_argument(ValueError, where, CYCLE, f"one k for each of {len(ks)} masks", saved, remedy)
        return tuple(check_int(where, CYCLE, k) for k in saved)
    if check_int(where, CYCLE, saved, least=0):
        return (int(saved),) * len(ks)
    if len(set(ks)) == 1:
        raise invalid_argument(
            ValueError, where, CYCLE, f"{ks[0]}, as the masks say", "0, of masks with several k", remedy
        )
    return ks


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
