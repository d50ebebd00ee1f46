"""Counts of units that stay in each group, from p, kinds and patterns."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import get_args

from mrreg.errors import check_number, invalid_argument, unknown_name
from mrreg.masks.groups import Kind, UnitGroup
from mrreg.module_utils import owner
from mrreg.thinning.twin import WHERE

Shares = float | Mapping[str, float | Mapping[str, float]]  # p by kinds and patterns; of blocks by patterns too
KINDS: tuple[str, ...] = get_args(Kind)
INNER = ("hidden", "heads", "channels")  # dropped by a plain number
MULTIPLE = 8  # of channels: with it convolutions are fast
SPARE = 1.5  # most channels that go for that multiple, over what p asks for


def with_counts(
    groups: Sequence[UnitGroup],
    p: Shares,
    include: Iterable[str] | None,
    exclude: Iterable[str] | None,
    blocks: Collection[str] = (),
) -> list[UnitGroup]:
    """Return the groups with the numbers of units that stay; names may match paths of blocks that are excluded, too."""
    choice = _Choice(groups, p, include, exclude, blocks)
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
        p: Shares,
        include: Iterable[str] | None,
        exclude: Iterable[str] | None,
        blocks: Collection[str],
    ) -> None:
        self.groups, self.blocks = groups, blocks
        self.asked = tuple(p) if isinstance(p, Mapping) else INNER  # kinds and patterns
        self.p = self._numbers(p)
        self.include = None if include is None else self._names("include", include)
        self.exclude = self._names("exclude", exclude or ())

    def _numbers(self, p: Shares) -> dict[str, float]:
        """Return p by kind and pattern."""
        if not isinstance(p, Mapping):
            number = check_number(WHERE, "p", p, "in [0, 1]", lambda p: 0 <= p <= 1)
            return dict.fromkeys(KINDS, number)
        self._names("p", p)
        others = [name for name in p if name != "blocks"]
        return {
            name: check_number(WHERE, f"p of {name!r}", p[name], "in [0, 1]", lambda p: 0 <= p <= 1) for name in others
        }

    def _names(self, argument: str, names: Iterable[str]) -> list[str]:
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise invalid_argument(TypeError, WHERE, argument, "a list of kinds or glob patterns", names)
        known = {group.kind for group in self.groups}.union(*map(owners, self.groups))
        for name in names:
            known_block = name == "blocks" or any(fnmatchcase(path, name) for path in self.blocks)
            if not known_block and not any(_matches(name, group) for group in self.groups):
                raise unknown_name(WHERE, argument, "kinds or patterns that match a group of units", name, known)
        return list(names)

    def p_of(self, group: UnitGroup) -> float:
        """The first pattern that matches a group decides, else its kind."""
        named = [name for name in self.p if name not in KINDS and _matches(name, group)]
        include = self.asked if self.include is None else self.include
        if not _any(include, group) or _any(self.exclude, group):
            return 0.0
        return self.p[named[0]] if named else self.p.get(group.kind, 0.0)


def _any(names: Iterable[str], group: UnitGroup) -> bool:
    return any(_matches(name, group) for name in names)


def _matches(name: str, group: UnitGroup) -> bool:
    if name in KINDS:
        return group.kind == name
    return any(fnmatchcase(owner, name) for owner in owners(group))
