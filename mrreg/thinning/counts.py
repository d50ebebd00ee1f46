"""Counts of units that stay in each group, from p, kinds and patterns."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from typing import get_args

from mrreg.errors import check, check_share, unknown_name
from mrreg.masks.groups import Kind, UnitGroup
from mrreg.module_utils import owner
from mrreg.thinning.twin import WHERE

Shares = float | Mapping[str, float | Mapping[str, float]]  # p by kinds and patterns; of blocks by patterns too
KINDS: tuple[str, ...] = get_args(Kind)
DEFAULTS = {"hidden": 0.125, "heads": 0.25, "channels": 0.125}  # with more, short trainings fall behind plain ones
MULTIPLE = 8  # of channels: with it convolutions are fast
SPARE = 1.5  # most channels that go for that multiple, over what p asks for


def with_counts(
    groups: Sequence[UnitGroup],
    p: Shares | None,
    include: Iterable[str] | None,
    exclude: Iterable[str] | None,
    others: Collection[str] = (),
) -> list[UnitGroup]:
    """Return the groups with the numbers of units that stay, from arguments of `thin`.

    Names in them may also match paths of others: blocks that are excluded, channels that are no group.
    """
    asked = list(DEFAULTS)  # kinds and patterns
    shares = dict.fromkeys(KINDS, DEFAULTS["hidden"]) | DEFAULTS
    if isinstance(p, Mapping):
        asked = _checked("p", p, groups, others)
        shares = {name: check_share(WHERE, f"p of {name!r}", p[name]) for name in p if name != "blocks"}
    elif p is not None:
        shares = dict.fromkeys(KINDS, check_share(WHERE, "p", p))
    wanted = asked if include is None else _checked("include", include, groups, others)
    unwanted = _checked("exclude", exclude or (), groups, others)
    kinds = {*DEFAULTS, *asked, *wanted}.intersection(KINDS)  # others only if they are named

    def p_of(group: UnitGroup) -> float:
        named = [name for name in shares if name not in KINDS and _any([name], [group])]  # they go before kinds
        chosen = group.kind in kinds and _any(wanted, [group]) and not _any(unwanted, [group])
        return shares.get(named[0] if named else group.kind, 0.0) if chosen else 0.0

    return [group if group.blocks else replace(group, kept=kept(group, p_of(group))) for group in groups]


def _checked(argument: str, names: Iterable[str], groups: Sequence[UnitGroup], others: Collection[str]) -> list[str]:
    named = not isinstance(names, str) and all(isinstance(name, str) for name in names)
    check(named, WHERE, argument, "a list of kinds or glob patterns", names, kind=TypeError)
    for name in names:
        if not (name in KINDS or _any([name], groups) or any(fnmatchcase(path, name) for path in others)):
            known = {group.kind for group in groups}.union(*map(owners, groups))
            raise unknown_name(WHERE, argument, "kinds or patterns that match a group of units", name, known)
    return list(names)


def _any(names: Iterable[str], groups: Sequence[UnitGroup]) -> bool:
    """Tell if a kind or pattern takes a group."""
    pairs = product(names, groups)
    return any(g.kind == n if n in KINDS else any(fnmatchcase(each, n) for each in owners(g)) for n, g in pairs)


def kept(group: UnitGroup, p: float) -> int:
    """Number of units that stay: n - round(p n), at least one; for channels a near multiple of eight."""
    dropped = round(p * group.units)
    rest = max(group.units - dropped, 1)
    single = all(slot.indices.shape[1] == 1 for slot in group.slots if slot.role == "producer")
    if group.kind == "channels" and single and group.units >= 2 * MULTIPLE:
        even = max(rest // MULTIPLE * MULTIPLE, MULTIPLE)
        if group.units - even <= SPARE * dropped:
            return even
    return rest


def owners(group: UnitGroup) -> set[str]:
    """Paths of the modules that make the units; of those that read them, where no module is known that does."""
    if group.blocks:
        return {block.name for block in group.blocks}
    role = "consumer" if group.kind in ("inputs", "outputs") else "producer"
    return {owner(slot.name) for slot in group.slots if slot.role == role}
