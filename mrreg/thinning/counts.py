"""Counts of units that stay in each group, from p, kinds and patterns."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import get_args

from mrreg.errors import check_share, invalid_argument, unknown_name
from mrreg.masks.groups import Kind, UnitGroup
from mrreg.module_utils import owner
from mrreg.thinning.twin import WHERE

Shares = float | Mapping[str, float | Mapping[str, float]]  # p by kinds and patterns; of blocks by patterns too
KINDS: tuple[str, ...] = get_args(Kind)
DEFAULTS = {"hidden": 0.25, "heads": 0.25, "channels": 0.125}  # with AdamW, half of the hidden units is too much
INNER = tuple(DEFAULTS)
MULTIPLE = 8  # of channels: with it convolutions are fast
SPARE = 1.5  # most channels that go for that multiple, over what p asks for


def with_counts(
    groups: Sequence[UnitGroup],
    p: Shares | None,
    include: Iterable[str] | None,
    exclude: Iterable[str] | None,
    blocks: Collection[str] = (),
    refused: Collection[str] = (),
) -> list[UnitGroup]:
    """Return the groups with the numbers of units that stay.

    Args:
        groups: All that there are.
        p: As in `thin`.
        include: As in `thin`.
        exclude: As in `thin`.
        blocks: Paths of blocks that are excluded, which names may match too.
        refused: Paths of channels that are no group, which names may match too.
    """
    choice = _Choice(groups, p, include, exclude, blocks, refused)
    return [group if group.blocks else replace(group, kept=kept(group, choice.p_of(group))) for group in groups]


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


class _Choice:
    """The arguments `p`, `include` and `exclude`, checked against the groups that were found."""

    def __init__(
        self,
        groups: Sequence[UnitGroup],
        p: Shares | None,
        include: Iterable[str] | None,
        exclude: Iterable[str] | None,
        blocks: Collection[str],
        refused: Collection[str],
    ) -> None:
        self.groups, self.blocks, self.refused = groups, blocks, refused
        self.p = self._numbers(p)
        asked = list(p) if isinstance(p, Mapping) else list(INNER)  # kinds and patterns
        self.include = asked if include is None else self._names("include", include)
        self.exclude = self._names("exclude", exclude or ())
        self.kinds = {*INNER, *asked, *self.include}.intersection(KINDS)  # others only if they are named

    def _numbers(self, p: Shares | None) -> dict[str, float]:
        """Return p by kind and pattern."""
        if p is None:
            p = dict.fromkeys(KINDS, DEFAULTS["hidden"]) | DEFAULTS
        if not isinstance(p, Mapping):
            return dict.fromkeys(KINDS, check_share(WHERE, "p", p))
        self._names("p", p)
        return {name: check_share(WHERE, f"p of {name!r}", p[name]) for name in p if name != "blocks"}

    def _names(self, argument: str, names: Iterable[str]) -> list[str]:
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise invalid_argument(TypeError, WHERE, argument, "a list of kinds or glob patterns", names)
        known = {group.kind for group in self.groups}.union(*map(owners, self.groups))
        for name in names:
            others = any(fnmatchcase(path, name) for path in (*self.blocks, *self.refused))
            if not (name in KINDS or others or _any([name], self.groups)):
                raise unknown_name(WHERE, argument, "kinds or patterns that match a group of units", name, known)
        return list(names)

    def p_of(self, group: UnitGroup) -> float:
        """The first pattern that matches a group decides, else its kind."""
        chosen = group.kind in self.kinds and _any(self.include, [group]) and not _any(self.exclude, [group])
        named = [name for name in self.p if name not in KINDS and _matches(name, group)]
        return self.p.get(named[0] if named else group.kind, 0.0) if chosen else 0.0


def _any(names: Iterable[str], groups: Sequence[UnitGroup]) -> bool:
    return any(_matches(name, group) for name in names for group in groups)


def _matches(name: str, group: UnitGroup) -> bool:
    if name in KINDS:
        return group.kind == name
    return any(fnmatchcase(each, name) for each in owners(group))
