"""Find the modules that can be off: those that the user names, or those with a skip connection of their own."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mrreg.errors import check, check_share, unknown_name
from mrreg.masks.blocks import first_input, switched, value_when_off
from mrreg.masks.groups import Block
from mrreg.masks.install import MultirateMask
from mrreg.module_utils import within
from mrreg.thinning.counts import DEFAULTS, Shares
from mrreg.thinning.paths import Path, difference, run
from mrreg.thinning.recorder import Recording
from mrreg.thinning.report import ThinEntry
from mrreg.thinning.trial import Trial
from mrreg.thinning.twin import WHERE, Inputs, randomize

BLOCKS: Literal["blocks"] = "blocks"


def find_blocks(
    twin: nn.Module,
    inputs: Inputs,
    plain: Path,
    p: Shares | None,
    include: Iterable[str] | None,
    exclude: Iterable[str] | None,
) -> list[ThinEntry]:
    """Return the group of modules that can be off one by one, as `thin`'s arguments choose, and why others cannot."""
    asked: Any = p.get(BLOCKS) if isinstance(p, Mapping) else None
    if include is not None and BLOCKS in include and not isinstance(p, Mapping):
        asked = DEFAULTS["hidden"] if p is None else p
    if asked is None:
        return []
    randomize(twin)
    chosen = _named(asked, dict(twin.named_modules())) if isinstance(asked, Mapping) else {}
    watched = _watched(twin, inputs, chosen or [path for path, _ in twin.named_modules() if path])
    if not isinstance(asked, Mapping):
        own = [path for path, each in watched.items() if isinstance(each, Block) and each.gives == "input"]
        own = [path for path in own if not any(within(path, other) for other in own if other != path)]
        chosen = dict.fromkeys(own, check_share(WHERE, f"p of {BLOCKS!r}", asked))
        rule, remedy = "for blocks that are there", f'Name modules: p={{"{BLOCKS}": {{"layers.*": 0.2}}}}.'
        check(own, WHERE, "p", rule, "no module with a skip connection of its own", remedy)
    # modules such as DropPath keep all then, whatever others have drawn before them
    trial = Trial(twin, inputs, [], [plain._replace(largest=True)])
    blind = not _effect_of_inputs(trial)  # of integers that no embedding reads
    blocks, others = list[Block](), list[ThinEntry]()
    for path, number in chosen.items():
        block, wanted = watched[path], number and (include is None or _named_by(path, include))
        if not wanted or _named_by(path, exclude or ()):
            reason = "not asked for"
        else:
            reason = block if isinstance(block, str) else obstacle(trial, block, blind)
        if isinstance(block, Block) and not reason:
            blocks.append(block)
        else:
            others.append(ThinEntry(path, BLOCKS, 1, 1, (), reason=reason))
    if not blocks:
        return others
    units, dropped = len(blocks), round(sum(chosen[block.name] for block in blocks))
    group = ThinEntry(BLOCKS, BLOCKS, units, max(units - dropped, 1), (), tuple(blocks))
    return [group if dropped else group.refused("p is so small that all of them run"), *others]


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


def _named_by(path: str, names: Iterable[str]) -> bool:
    return any(name == BLOCKS or fnmatchcase(path, name) for name in names)


def switches(off: Iterable[int]) -> SimpleNamespace:
    """Return what stands for a mask in a trial of blocks, of which some are off."""
    return SimpleNamespace(masked=True, off=frozenset(off), block_factor=1.0)


def obstacle(trial: Trial, block: Block, blind: bool) -> str:
    """Describe how the output changes if a block is off and has noise for parameters, instead of being replaced."""
    module = trial.twin.get_submodule(block.name)
    handle = module.register_forward_hook(partial(_replace, block), with_kwargs=True)
    trial.expect()
    handle.remove()
    with torch.no_grad(), switched(trial.twin, [block], switches([0])):
        for parameter in module.parameters():
            parameter.normal_()
        with torch.enable_grad():
            fault, needed = trial.fault(), not blind and not _effect_of_inputs(trial)
    randomize(trial.twin)
    return fault or ("nothing goes around it: without it, the output depends on no input" if needed else "")


def _effect_of_inputs(trial: Trial) -> str:
    other = trial.paths[0]._replace(factor=0.5, shift=0.3)
    return difference(run(trial.twin, trial.inputs, other), trial.expected[0, trial.paths[0]])


def _replace(block: Block, _: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    value = value_when_off(block, args, kwargs)
    return (value, *output[1:]) if block.outputs else value


def _watched(twin: nn.Module, inputs: Inputs, paths: Iterable[str]) -> dict[str, Block | str]:
    """Return modules as blocks, or why they are none: cut at products, output depends on input only by a skip."""
    found: dict[str, Block | str] = dict.fromkeys(paths, "the forward on example_inputs does not call it")
    recording, running = Recording(twin, inputs), list[int]()  # the number of sums before modules that run

    def leave(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before, entering = running.pop(), first_input(args, kwargs)
        value = output[0] if type(output) is tuple and output else output
        own = tuple(name for name, _ in module.named_parameters(prefix=path))
        fits = isinstance(value, Tensor) and value.is_floating_point() and entering is not None
        if not fits or value.shape != entering.shape:
            found[path] = "its output has another shape than its first input"
        elif not own or any(isinstance(each, MultirateMask) for each in module.modules()):
            found[path] = "it has no parameters of its own, or a MultirateMask"
        else:
            seed, passed = torch.rand_like(value) + 0.5, None
            if value.requires_grad and entering.requires_grad:
                passed = torch.autograd.grad([value], [entering], [seed], retain_graph=True, allow_unused=True)[0]
            skips, outputs = passed is not None and len(recording.sums) > before, 0 if value is output else len(output)
            # the sum is what it gives, with no norm after it
            scaled = not skips or passed is None or torch.equal(passed, seed)
            found[path] = Block(path, "input" if skips else "zeros", outputs, scaled, own)

    with ExitStack() as stack:
        for path in found:
            module, enter = twin.get_submodule(path), lambda *_: running.append(len(recording.sums))
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(partial(leave, path), with_kwargs=True).remove)
        recording.run()
    return found
