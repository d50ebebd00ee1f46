"""Counts of units that stay in each group, from p, kinds and patterns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import get_args

from mrreg.errors import check, check_share, unknown_name
from mrreg.masks.groups import Kind, UnitGroup
from mrreg.module_utils import owner
from mrreg.thinning.report import ThinEntry
from mrreg.thinning.twin import WHERE

Shares = float | Mapping[str, float | Mapping[str, float]]  # p by kinds and patterns; of blocks by patterns too
KINDS = [kind for kind in get_args(Kind) if kind != "none"]
DEFAULTS = {"hidden": 0.125, "heads": 0.25, "channels": 0.125}  # with more, short trainings fall behind plain ones
MULTIPLE = 8  # of channels: with it convolutions are fast
SPARE = 1.5  # most channels that go for that multiple, over what p asks for


def with_counts(
    groups: Sequence[ThinEntry],
    p: Shares | None,
    include: Iterable[str] | None,
    exclude: Iterable[str] | None,
) -> list[ThinEntry]:
    """Return the groups with the numbers of units that stay, from arguments of `thin`."""
    asked = list(DEFAULTS)  # kinds and patterns
    shares = dict.fromkeys(KINDS, DEFAULTS["hidden"]) | DEFAULTS
    if isinstance(p, Mapping):
        asked = _checked("p", p, groups)
        shares = {name: check_share(WHERE, f"p of {name!r}", p[name]) for name in p if name != "blocks"}
    elif p is not None:
        shares = dict.fromkeys(KINDS, check_share(WHERE, "p", p))
    wanted = asked if include is None else _checked("include", include, groups)
    unwanted = _checked("exclude", exclude or (), groups)
    kinds = {*DEFAULTS, *asked, *wanted}.intersection(KINDS)  # others only if they are named

    def counted(group: ThinEntry) -> ThinEntry:
        named = [name for name in shares if name not in KINDS and takes(name, group)]  # they go before kinds
        chosen = group.kind in kinds and any(takes(name, group) for name in wanted)
        chosen = chosen and not any(takes(name, group) for name in unwanted)
        share = shares.get(named[0] if named else group.kind, 0.0) if chosen else 0.0
        stay = group.kept if group.reason or group.blocks else kept(group, share)
        return replace(group, kept=stay, reason=group.reason or ("not asked for" if stay == group.units else ""))

    return list(map(counted, groups))


def _checked(argument: str, names: Iterable[str], groups: Sequence[ThinEntry]) -> list[str]:
    named = not isinstance(names, str) and all(isinstance(name, str) for name in names)
    check(named, WHERE, argument, "a list of kinds or glob patterns", names, kind=TypeError)
    paths = set[str]().union(*map(owners, groups))
    for name in names:
        if not (name in KINDS or any(fnmatchcase(path, name) for path in paths)):
            known = {group.kind for group in groups if group.kind != "none"} | paths
            raise unknown_name(WHERE, argument, "kinds or patterns that match a group of units", name, known)
    return list(names)


def takes(name: str, group: UnitGroup) -> bool:
    """Tell if a kind or pattern takes a group."""
    return group.kind == name if name in KINDS else any(fnmatchcase(path, name) for path in owners(group))


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
    if group.kind == "blocks":
        return {block.name for block in group.blocks} or {group.name}
    made = [slot.name for slot in group.slots if slot.role == "producer"]
    return set(map(owner, made or [slot.name for slot in group.slots]))
