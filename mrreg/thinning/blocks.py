"""Find residual branches and blocks that can be off: those that the user names, and those that DropPath modules end."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mrreg.errors import check_number, invalid_argument, unknown_name
from mrreg.masks.block_forward import first_input, switched, value_when_off
from mrreg.masks.slots import Block, BlockCall, UnitGroup
from mrreg.module_utils import within
from mrreg.thinning.admission import Admission
from mrreg.thinning.double_copy import WHERE, DoublePrecision, Inputs, floats_in, randomize
from mrreg.thinning.recorder import SUMS
from mrreg.thinning.trial import Trial

BLOCKS = "blocks"
DROP_PATH = re.compile(r"drop_?path|stochastic_?depth", re.IGNORECASE)
RANGE = "in [0, 1]"


def drop_probability(module: nn.Module) -> float | None:
    """Return the probability with which a DropPath of any library drops; None for other modules."""
    if not DROP_PATH.search(type(module).__name__):
        return None
    found = vars(module).get("drop_prob", vars(module).get("p"))
    return float(found) if isinstance(found, int | float) else None


def chosen_blocks(
    model: nn.Module, p: Any, include: Collection[str] | None, exclude: Collection[str]
) -> dict[str, float]:
    """Return p of each module that `thin`'s arguments choose as the end of a branch, or as a block, by its path."""
    asked = p.get(BLOCKS) if isinstance(p, Mapping) else None
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


def outermost(paths: Collection[str]) -> list[str]:
    """Return the paths that lie in no other one."""
    return [path for path in paths if not any(within(other, path) for other in paths if other != path)]


def _matches(path: str, names: Iterable[str]) -> bool:
    return any(name == BLOCKS or fnmatchcase(path, name) for name in names)


def find_blocks(
    twin: nn.Module, inputs: Inputs, chosen: Mapping[str, float], tick: Callable[[str], None]
) -> tuple[list[UnitGroup], dict[str, str]]:
    """Return the group of the chosen modules that can be off one by one, and why the others cannot, by path.

    Args:
        twin: A float64 copy with random weights.
        inputs: Arguments of its forward; afterwards they belong to the graph of that forward.
        chosen: p of each module, by path.
        tick: Is told what is looked at.
    """
    tick("looking for blocks")
    randomize(twin)
    reasons, blocks = _look(twin, inputs, chosen)
    trial = Trial(twin, inputs, [])
    trial.modes = trial.modes[-1:]
    for number, block in enumerate(blocks):
        tick(f"trying {block.name}")
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


def admit_blocks(admission: Admission, group: UnitGroup) -> None:
    """Admit the group of blocks if they can be off along with units that are left out."""
    if reason := obstacle(admission.trial, group.blocks, range(group.units)):
        admission.reasons[group.name] = f"not along with the others: {reason}"
    else:
        admission.groups.append(group)


def obstacle(trial: Trial, blocks: Sequence[Block], off: Iterable[int]) -> str:
    """Describe how the output changes if blocks are not computed, instead of computed and replaced; empty if not."""
    off = frozenset(off)
    handles = [_replaced(trial.twin, blocks[number].calls[0]) for number in off]
    try:
        with switched(trial.twin, blocks, Switched()):
            trial.expected = {training: trial._forward(training) for training in trial.modes}
    finally:
        for handle in handles:
            handle.remove()
    with switched(trial.twin, blocks, Switched(off)):
        return trial.difference()


def _replaced(twin: nn.Module, call: BlockCall) -> Any:
    """Replace the output of a module by what stands for it while its block is off."""

    def replace(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        value = value_when_off(call, args, kwargs)
        return (value, *output[1:]) if call.outputs else value

    return twin.get_submodule(call.module).register_forward_hook(replace, with_kwargs=True)


@dataclass
class _Seen:
    """One chosen module in a forward.

    Args:
        drops: True for a DropPath.
        gives: What it gives while it is off.
        scaled: True if its output can be scaled: nothing comes after the last sum with the stream inside it.
        outputs: Length of the tuple that it returns; 0 for a tensor.
        stream: Its input, and the sums inside it that have the input as a part, with the versions that they had.
        ends: What it has returned.
        zeros: What the forward went on with instead of the last one, if there was no such sum.
        added: True once zeros that come from there were added to something.
        reason: Obstacle.
    """

    drops: bool
    gives: Literal["zeros", "input"] = "zeros"
    scaled: bool = True
    outputs: int = 0
    stream: list[tuple[Tensor, int]] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)
    zeros: Tensor | None = None
    added: bool = False
    reason: str = ""


class _Watch(TorchFunctionMode):
    """Follows a forward: a chosen module without a skip inside gives zeros, so that sums show the skip around it.

    Args:
        twin: A double copy, which gets hooks until `stop`.
        chosen: Paths of the modules.
    """

    def __init__(self, twin: nn.Module, chosen: Collection[str]) -> None:
        super().__init__()
        modules = dict(twin.named_modules())
        self.seen = {path: _Seen(drop_probability(modules[path]) is not None) for path in chosen}
        self.made: dict[str, list[Tensor]] = {}  # what modules return, by path
        self.outputs: dict[str, int] = {}  # lengths of the tuples that modules return a tensor first in, or 0
        self._open: _Seen | None = None
        hooks = [
            module.register_forward_hook(partial(self._note, path), with_kwargs=True)
            for path, module in modules.items()
        ]
        for path in chosen:
            hooks.append(modules[path].register_forward_pre_hook(partial(self._enter, path), with_kwargs=True))
            hooks.append(modules[path].register_forward_hook(partial(self._leave, path), with_kwargs=True))
        self._hooks = hooks

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _note(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.made.setdefault(path, []).extend(tensor for tensor in floats_in(output) if tensor.requires_grad)
        first = output[0] if type(output) is tuple and output else output
        if isinstance(first, Tensor) and first_input(args, kwargs) is not None:
            self.outputs[path] = len(output) if first is not output else 0

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._open = self.seen[path]
        self._open.stream = [(each, each._version) for each in (first_input(args, kwargs),) if each is not None]

    def _leave(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        seen, self._open = self.seen[path], None
        if path not in self.outputs:
            seen.reason = "it takes or returns something else than a tensor first"
            return output
        seen.outputs = self.outputs[path]
        value, ((entering, version), *sums) = output[0] if seen.outputs else output, seen.stream
        if value.shape != entering.shape:
            seen.reason = "its output has another shape than its input"
        elif entering._version != version and value is not entering:
            seen.reason = "it changes its input in place"
        if seen.reason:
            return output
        seen.ends.append(value)
        if sums:
            seen.gives, seen.scaled = (
                "input",
                any(_same_memory(value, each) and value._version == v for each, v in sums),
            )
            passed = entering.clone()
        else:
            seen.zeros = torch.zeros_like(value).requires_grad_(True)
            passed = seen.zeros.clone()  # code may write to it
        return (passed, *output[1:]) if seen.outputs else passed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        summands = getattr(func, "__name__", "") in SUMS and len(args) > 1 and all(map(_is_activation, args[:2]))
        if not summands or args[0].shape != args[1].shape:
            return func(*args, **(kwargs or {}))
        pairs = (args[:2], args[1::-1])
        if self._open is None:
            for one, two in pairs:
                self._note_zero(one, two)
            return func(*args, **(kwargs or {}))
        skips = any(self._continues_stream(self._open, one, two) for one, two in pairs)
        result = func(*args, **(kwargs or {}))
        if skips:
            self._open.stream.append((result, result._version))
        return result

    def _continues_stream(self, seen: _Seen, one: Tensor, two: Tensor) -> bool:
        """Tell if one summand is the stream, and the other is computed from it."""
        if not any(_same_memory(one, each) for each, _ in seen.stream):
            return False
        entering = seen.stream[0][0]
        return not entering.requires_grad or bool(_reached([two], [entering]))

    def _note_zero(self, one: Tensor, two: Tensor) -> None:
        """Note whose zeros are added to something that is not zero."""
        waiting = [(seen, seen.zeros) for seen in self.seen.values() if seen.zeros is not None and not seen.added]
        if waiting and one.requires_grad and not one.any() and two.any():
            for i in _reached([one], [zeros for _, zeros in waiting]):
                waiting[i][0].added = True


def _is_activation(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and not isinstance(value, nn.Parameter)
        and value.is_floating_point()
        and value.dim() > 1
    )


def _same_memory(one: Tensor, two: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr() and one.numel() == two.numel()


def _reached(ends: Sequence[Tensor], targets: Sequence[Tensor]) -> set[int]:
    """Return the numbers of the targets that some tensors were computed from."""
    ends = [end for end in ends if end.requires_grad]
    if not ends or not targets:
        return set()
    seeds = [torch.ones_like(end) for end in ends]
    grads = torch.autograd.grad(ends, targets, seeds, retain_graph=True, allow_unused=True)
    return {i for i, grad in enumerate(grads) if grad is not None}


def _look(twin: nn.Module, inputs: Inputs, chosen: Collection[str]) -> tuple[dict[str, str], list[Block]]:
    """Run a copy once; return what keeps chosen modules from being blocks, and the blocks that the others are."""
    for tensor in floats_in(inputs):
        tensor.requires_grad_(True)
    watch = _Watch(twin, chosen)
    try:
        with DoublePrecision(), watch:  # type: ignore[no-untyped-call]
            output = twin(*inputs.args, **inputs.kwargs)
    finally:
        watch.stop()
    parameters = dict(twin.named_parameters())
    made = [(path, tensor) for path, tensors in watch.made.items() for tensor in tensors]
    targets = [*parameters.values(), *(tensor for _, tensor in made)]
    users: list[set[str]] = [set() for _ in targets]  # the ends that each was computed for
    for path, ends in [*((path, seen.ends) for path, seen in watch.seen.items()), ("", floats_in(output))]:
        for i in _reached(ends, targets):
            users[i].add(path)
    of_parameter = dict(zip(parameters, users, strict=False))
    of_module: dict[str, set[str]] = {}
    for (path, _), found in zip(made, users[len(parameters) :], strict=True):
        of_module.setdefault(path, set()).update(found)
    reasons, blocks = {}, []
    for path, seen in watch.seen.items():
        if reason := _reason(path, seen, of_parameter):
            reasons[path] = reason
            continue
        calls = [BlockCall(path, seen.gives, seen.outputs, seen.scaled, seen.drops)]
        if seen.gives == "zeros":
            helpers = [name for name, found in of_module.items() if found == {path} and name in watch.outputs]
            helpers = [name for name in outermost(helpers) if not any(within(name, other) for other in chosen)]
            calls += [BlockCall(name, "input", watch.outputs[name], False) for name in helpers]
        own = tuple(name for name, found in of_parameter.items() if found == {path})
        blocks.append(Block(path, tuple(calls), own))
    return reasons, blocks


def _reason(path: str, seen: _Seen, users: Mapping[str, set[str]]) -> str:
    """Return what keeps a module from being a block."""
    if seen.reason:
        return seen.reason
    if not seen.ends:
        return "the forward on example_inputs does not call it"
    if seen.gives == "zeros" and not seen.added:
        return "its input is not added to its output, neither in it nor after it"
    if shared := [name for name, found in users.items() if within(path, name) and found - {path}]:
        return f"{shared[0]!r} is used elsewhere too"
    return "" if {path} in users.values() else "it has no parameters of its own"
