"""Find residual branches and blocks that can be off: those that the user names, and those that DropPath modules end."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import nn

from mrreg.errors import check_number, invalid_argument, unknown_name
from mrreg.masks.blocks import switched, value_when_off
from mrreg.masks.groups import Block, BlockCall, UnitGroup
from mrreg.thinning.branches import drop_probability, look, outermost
from mrreg.thinning.counts import Shares
from mrreg.thinning.paths import find_paths
from mrreg.thinning.trial import Admission, Trial
from mrreg.thinning.twin import WHERE, Inputs, randomize

BLOCKS: Literal["blocks"] = "blocks"
RANGE = "in [0, 1]"


def chosen_blocks(
    model: nn.Module, p: Shares, include: Iterable[str] | None, exclude: Iterable[str] = ()
) -> dict[str, float]:
    """Return p of each module that `thin`'s arguments choose as the end of a branch, or as a block, by its path."""
    asked = p.get(BLOCKS) if isinstance(p, Mapping) else None
    include = None if include is None else tuple(include)
    if asked is None and (include is None or BLOCKS not in include):
        return {}
    paths = dict(model.named_modules())
    found = {path: own for path, module in paths.items() if (own := drop_probability(module)) is not None}
    if isinstance(asked, Mapping):
        found = _named(asked, paths)
    elif asked is not None:
        number = check_number(WHERE, f"p of {BLOCKS!r}", asked, RANGE, lambda p: 0 <= p <= 1)
        found = dict.fromkeys(found, number)
    if not found:
        rule, remedy = "for blocks that are there", f'Name modules: p={{"{BLOCKS}": {{"layers.*": 0.2}}}}.'
        raise invalid_argument(ValueError, WHERE, "p", rule, "no DropPath or StochasticDepth in the model", remedy)
    if include is not None:
        found = {path: each for path, each in found.items() if _matches(path, include)}
    return {path: each for path, each in found.items() if each and not _matches(path, exclude)}


def _named(asked: Mapping[str, float], paths: Collection[str]) -> dict[str, float]:
    """Return p of the outermost modules that patterns match; the first that matches decides."""
    found: dict[str, float] = {}
    for pattern, p in asked.items():
        number = check_number(WHERE, f"p of {pattern!r}", p, RANGE, lambda p: 0 <= p <= 1)
        hits = [path for path in paths if path and fnmatchcase(path, pattern)]
        if not hits:
            raise unknown_name(WHERE, "p", "names or patterns that match a module", pattern, paths)
        found = dict.fromkeys(hits, number) | found
    return {path: found[path] for path in outermost(found)}


def _matches(path: str, names: Iterable[str]) -> bool:
    return any(name == BLOCKS or fnmatchcase(path, name) for name in names)


def find_blocks(twin: nn.Module, inputs: Inputs, chosen: Mapping[str, float]) -> tuple[list[UnitGroup], dict[str, str]]:
    """Return the group of the chosen modules that can be off one by one, and why the others cannot, by path.

    Args:
        twin: A float64 copy with random weights.
        inputs: Arguments of its forward; afterwards they belong to the graph of that forward.
        chosen: p of each module, by path.
    """
    randomize(twin)
    for module in twin.modules():
        if drop_probability(module):
            vars(module)["drop_prob" if "drop_prob" in vars(module) else "p"] = 0.0
    reasons, blocks = look(twin, inputs, chosen)
    trial = Trial(twin, inputs, [], find_paths(twin, inputs))
    for number, block in enumerate(blocks):
        if reason := obstacle(trial, blocks, [number]):
            reasons[block.name] = reason
    blocks = [block for block in blocks if block.name not in reasons]
    if not blocks:
        return [], reasons
    units, dropped = len(blocks), round(sum(chosen[block.name] for block in blocks))
    return [UnitGroup(BLOCKS, BLOCKS, units, max(units - dropped, 1), (), tuple(blocks))], reasons


@dataclass
class Switched:
    """Blocks that are off in a trial."""

    off: frozenset[int] = frozenset()
    masked: bool = True
    block_factor: float = 1.0

    @classmethod
    def all(cls, group: UnitGroup) -> "Switched":
        """All blocks of a group."""
        return cls(frozenset(range(group.units)))


def admit_blocks(trial: Trial, admission: Admission, group: UnitGroup) -> None:
    """Admit the group of blocks if they can be off along with units that are left out of the copy."""
    if reason := obstacle(trial, group.blocks, range(group.units)):
        admission.reasons[group.name] = f"not along with the others: {reason}"
    else:
        admission.groups.append(group)


def obstacle(trial: Trial, blocks: Sequence[Block], off: Iterable[int]) -> str:
    """Describe how the output changes if blocks are not computed, instead of computed and replaced; empty if not."""
    off = frozenset(off)
    handles = [_replaced(trial.twin, blocks[number].calls[0]) for number in off]
    try:
        with switched(trial.twin, blocks, Switched()):
            trial.expect()
    finally:
        for handle in handles:
            handle.remove()
    with switched(trial.twin, blocks, Switched(off)):
        return trial.fault()


def _replaced(twin: nn.Module, call: BlockCall) -> Any:
    """Replace the output of a module by what stands for it while its block is off."""

    def replace(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        value = value_when_off(call, args, kwargs)
        return (value, *output[1:]) if call.outputs else value

    return twin.get_submodule(call.module).register_forward_hook(replace, with_kwargs=True)
