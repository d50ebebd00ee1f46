"""Find the modules that can be off: those that the user names, or those with a skip connection of their own."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mrreg.errors import check, check_share, unknown_name
from mrreg.masks.blocks import first_input, switched, value_when_off
from mrreg.masks.groups import Block, UnitGroup
from mrreg.masks.install import MultirateMask
from mrreg.module_utils import within
from mrreg.thinning.counts import DEFAULTS, Shares
from mrreg.thinning.paths import Path
from mrreg.thinning.recorder import record
from mrreg.thinning.trial import Trial
from mrreg.thinning.twin import WHERE, Inputs, double_copy, probing, randomize, read_inputs

BLOCKS: Literal["blocks"] = "blocks"


def chosen_blocks(
    model: nn.Module, p: Shares | None, include: Iterable[str] | None, example_inputs: Any
) -> dict[str, float]:
    """Return p of each module that `thin`'s arguments choose as a block, by its path."""
    asked = p.get(BLOCKS) if isinstance(p, Mapping) else None
    if include is not None and BLOCKS in include and not isinstance(p, Mapping):
        asked = DEFAULTS["hidden"] if p is None else p
    if isinstance(asked, Mapping):
        found = _named(asked, dict(model.named_modules()))
    elif asked is None:
        return {}
    else:
        number, twin = check_share(WHERE, f"p of {BLOCKS!r}", asked), double_copy(model)
        with probing(twin):
            found = dict.fromkeys(residual_blocks(twin, read_inputs(example_inputs)), number)
        rule, remedy = "for blocks that are there", f'Name modules: p={{"{BLOCKS}": {{"layers.*": 0.2}}}}.'
        check(found, WHERE, "p", rule, "no module with a skip connection of its own", remedy)
    return {path: each for path, each in found.items() if each and (include is None or named_by(path, include))}


def _named(asked: Mapping[str, float], paths: Collection[str]) -> dict[str, float]:
    """Return p of the outermost modules that patterns match; the first that matches decides."""
    found: dict[str, float] = {}
    for pattern, p in asked.items():
        number = check_share(WHERE, f"p of {pattern!r}", p)
        hits = [path for path in paths if path and fnmatchcase(path, pattern)]
        if not hits:
            raise unknown_name(WHERE, "p", "names or patterns that match a module", pattern, paths)
        found = dict.fromkeys(hits, number) | found
    return {path: p for path, p in found.items() if not any(within(other, path) for other in found if other != path)}


def named_by(path: str, names: Iterable[str]) -> bool:
    """Tell if kinds or patterns take a block."""
    return any(name == BLOCKS or fnmatchcase(path, name) for name in names)


def residual_blocks(twin: nn.Module, inputs: Inputs) -> list[str]:
    """Return the innermost modules of a double copy that add their input to what they compute."""
    randomize(twin)
    found = [path for path, block in _Watch(twin, inputs, [path for path, _ in twin.named_modules() if path]).skipped()]
    return [path for path in found if not any(within(path, other) for other in found if other != path)]


def find_blocks(
    twin: nn.Module, inputs: Inputs, chosen: Mapping[str, float], plain: Path
) -> tuple[list[UnitGroup], dict[str, str]]:
    """Return the group of the chosen modules that can be off one by one, and why the others cannot, by path."""
    randomize(twin)
    watch = _Watch(twin, inputs, chosen)
    # modules such as DropPath keep all then, whatever others have drawn before them
    trial, reasons = Trial(twin, inputs, [], [plain._replace(largest=True)]), dict(watch.reasons)
    reasons |= {path: reason for path, block in watch.blocks.items() if (reason := obstacle(trial, block))}
    blocks = tuple(block for path, block in watch.blocks.items() if path not in reasons)
    if not blocks:
        return [], reasons
    units, dropped = len(blocks), round(sum(chosen[block.name] for block in blocks))
    return [UnitGroup(BLOCKS, BLOCKS, units, max(units - dropped, 1), (), blocks)], reasons


@dataclass
class Switched:
    """Blocks that are off in a trial."""

    off: frozenset[int]
    masked: bool = True
    block_factor: float = 1.0


def obstacle(trial: Trial, block: Block) -> str:
    """Describe how the output changes if a block is off and has noise for parameters, instead of being replaced."""
    module = trial.twin.get_submodule(block.name)
    handle = module.register_forward_hook(partial(_replace, block), with_kwargs=True)
    trial.expect()
    handle.remove()
    with torch.no_grad(), switched(trial.twin, [block], Switched(frozenset([0]))):
        for parameter in module.parameters():
            parameter.normal_()
        with torch.enable_grad():
            fault = trial.fault()
    randomize(trial.twin)
    return fault


def _replace(block: Block, _: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    value = value_when_off(block, args, kwargs)
    return (value, *output[1:]) if block.outputs else value


class _Watch:
    """Records a forward, cut at its products: what a module gives depends on its input only by a skip of its own."""

    def __init__(self, twin: nn.Module, inputs: Inputs, paths: Collection[str]) -> None:
        self.blocks: dict[str, Block] = {}
        self.reasons = dict.fromkeys(paths, "the forward on example_inputs does not call it")
        self._sums: list[tuple[Tensor, Tensor]] = []
        self._open: list[tuple[Any, int, int]] = []  # inputs of running modules, their versions, and the sums before
        self._branches: dict[str, tuple[Tensor, Tensor]] = {}  # their inputs, and leaves added to their outputs
        with ExitStack() as stack:
            for path in paths:
                module, leave = twin.get_submodule(path), partial(self._leave, path)
                stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
            recording = record(twin, inputs, self._sums)
        leaves = [*(op.made for op in recording.ops), *recording.inputs, *(leaf for _, leaf in self._branches.values())]
        sums = [
            (_sources(one, leaves), _sources(two, leaves)) for pair in self._sums for one, two in (pair, pair[::-1])
        ]
        for path, (entering, leaf) in self._branches.items():
            near = _sources(entering, leaves)
            if not any(id(leaf) in one - two and two & near for one, two in sums):
                self.reasons[path] = "its input is not added to its output, neither in it nor after it"

    def skipped(self) -> Iterator[tuple[str, Block]]:
        """Yield the modules with a skip of their own."""
        yield from (each for each in self.blocks.items() if each[1].gives == "input" and each[0] not in self.reasons)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        entering = first_input(args, kwargs)
        self._open.append((entering, 0 if entering is None else entering._version, len(self._sums)))

    def _leave(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        entering, version, before = self._open.pop()
        value = output[0] if type(output) is tuple and output else output
        own = tuple(name for name, _ in module.named_parameters(prefix=path))
        if reason := _misfit(entering, version, value) or _owned(path, module, own):
            self.reasons[path] = reason
            return output
        seed = torch.rand_like(value) + 0.5
        options: dict[str, bool] = {"retain_graph": True, "allow_unused": True}
        known = value.requires_grad and entering.requires_grad
        passed = torch.autograd.grad([value], [entering], [seed], **options)[0] if known else None
        skips, outputs = passed is not None and len(self._sums) > before, 0 if value is output else len(output)
        # the sum is what it gives, with no norm after it
        scaled = not skips or passed is None or torch.equal(passed, seed)
        self.blocks[path] = Block(path, "input" if skips else "zeros", outputs, scaled, own)
        self.reasons.pop(path, None)
        if skips:
            return output
        leaf = value.new_zeros(()).expand(value.shape).detach().requires_grad_(True)
        self._branches[path] = entering.clone(), leaf  # code may write to it
        return (value + leaf, *output[1:]) if outputs else value + leaf


def _misfit(entering: Tensor | None, version: int, value: object) -> str:
    """Return what keeps a module that gives a value from being a block."""
    if entering is None or not isinstance(value, Tensor) or not value.is_floating_point():
        return "it takes or returns something else than a tensor first"
    if value.shape != entering.shape:
        return "its output has another shape than its input"
    return "it changes its input in place" if entering._version != version else ""


def _owned(path: str, module: nn.Module, own: Collection[str]) -> str:
    masks = [name for name, each in module.named_modules(prefix=path) if isinstance(each, MultirateMask)]
    return f"{masks[0]!r} is a MultirateMask" if masks else "" if own else "it has no parameters of its own"


def _sources(end: Tensor, leaves: Sequence[Tensor]) -> set[int]:
    """Return the leaves, by id, that a tensor was computed from."""
    if not end.requires_grad:
        return set()
    grads = torch.autograd.grad([end], leaves, [torch.ones_like(end)], retain_graph=True, allow_unused=True)
    return {id(leaf) for leaf, grad in zip(leaves, grads, strict=True) if grad is not None}
