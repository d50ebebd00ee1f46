"""Look in a forward at modules that could be off: where the stream goes around them, what works for them alone."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mrreg.masks.blocks import first_input
from mrreg.masks.groups import Block, BlockCall
from mrreg.masks.install import MultirateMask
from mrreg.module_utils import within
from mrreg.thinning.recorder import summands
from mrreg.thinning.twin import DoublePrecision, Inputs, floats_in

DROP_PATH = re.compile(r"drop_?path|stochastic_?depth", re.IGNORECASE)


def drop_probability(module: nn.Module) -> float | None:
    """Return the probability with which a DropPath of any library drops; None for other modules."""
    found = vars(module).get("drop_prob", vars(module).get("p"))
    is_drop_path = DROP_PATH.search(type(module).__name__)
    return float(found) if is_drop_path and isinstance(found, int | float) else None


def outermost(paths: Collection[str]) -> list[str]:
    """Return the paths that lie in no other one."""
    return [path for path in paths if not any(within(other, path) for other in paths if other != path)]


def look(twin: nn.Module, inputs: Inputs, chosen: Collection[str]) -> tuple[dict[str, str], list[Block]]:
    """Run a double copy once; return what keeps chosen modules from being blocks, and the blocks that the others are.

    A module that adds its input to what it computes is a whole block, which gives its input when off. In the forward
    such modules give their input, and others zeros: where zeros are added to something, the module ends a branch.
    What was computed for one end alone is then what backward passes from there reach and others do not.
    """
    for tensor in floats_in(inputs):
        tensor.requires_grad_(True)
    watch = _Watch(twin, chosen)
    try:
        with DoublePrecision(), watch:  # type: ignore[no-untyped-call]
            output = twin(*inputs.args, **inputs.kwargs)
    finally:
        watch.stop()
    ends = {path: seen.ends for path, seen in watch.seen.items()} | {"": floats_in(output)}
    used_by = _uses(ends, {id(t): t for t in chain(twin.parameters(), *watch.made.values())})
    reasons, blocks = {}, []
    for path, seen in watch.seen.items():
        own = tuple(name for name, p in twin.named_parameters() if used_by[id(p)] == {path})
        if reason := seen.reason or _obstacle(path, twin, own, used_by, seen):
            reasons[path] = reason
            continue
        calls = [BlockCall(path, seen.gives, seen.outputs, seen.scaled, seen.drops)]
        if seen.gives == "zeros":
            alone = [
                name for name in watch.outputs if set().union(*(used_by[id(t)] for t in watch.made[name])) == {path}
            ]
            helpers = [name for name in outermost(alone) if not any(within(name, other) for other in chosen)]
            calls += [BlockCall(name, "input", watch.outputs[name], False) for name in helpers]
        blocks.append(Block(path, tuple(calls), own))
    return reasons, blocks


def _uses(ends: Mapping[str, Sequence[Tensor]], targets: Mapping[int, Tensor]) -> dict[int, set[str]]:
    """Return, for the id of each target, which ends were computed from it."""
    found: dict[int, set[str]] = {key: set() for key in targets}
    for path, tensors in ends.items():
        for key in _reached(tensors, targets):
            found[key].add(path)
    return found


def _reached(ends: Sequence[Tensor], targets: Mapping[Any, Tensor]) -> list[Any]:
    """Return the keys of the targets that some tensors were computed from."""
    ends = [end for end in ends if end.requires_grad]
    if not ends or not targets:
        return []
    seeds = [torch.ones_like(end) for end in ends]
    grads = torch.autograd.grad(ends, list(targets.values()), seeds, retain_graph=True, allow_unused=True)
    return [key for key, grad in zip(targets, grads, strict=True) if grad is not None]


def _obstacle(path: str, twin: nn.Module, own: Collection[str], used_by: Mapping[int, set[str]], seen: "_Seen") -> str:
    """Return what keeps a module that could be off from being a block."""
    if not seen.ends:
        return "the forward on example_inputs does not call it"
    if seen.gives == "zeros" and not seen.added:
        return "its input is not added to its output, neither in it nor after it"
    parameters = twin.get_submodule(path).named_parameters(prefix=path)
    if shared := next((name for name, p in parameters if used_by[id(p)] - {path}), ""):
        return f"{shared!r} is used elsewhere too"
    masks = [name for name, module in twin.named_modules() if isinstance(module, MultirateMask)]
    if masked := next((mask for mask in masks if any(within(mask, name) for name in own)), ""):
        return f"{masked!r} is a MultirateMask"
    return "" if own else "it has no parameters of its own"


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
        zeros: What the forward went on with instead, at its last call.
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
    """Follows a forward, in which chosen modules give what they would if they were off.

    Args:
        twin: A double copy, which has hooks until `stop`.
        chosen: Paths of the modules.
    """

    def __init__(self, twin: nn.Module, chosen: Collection[str]) -> None:
        super().__init__()
        self.seen: dict[str, _Seen] = {}
        self.made: dict[str, list[Tensor]] = {}  # what modules return, by path
        self.outputs: dict[str, int] = {}  # lengths of the tuples in which a tensor comes first; 0 for a tensor alone
        self._open: _Seen | None = None
        self._hooks: list[Any] = []
        for path, module in twin.named_modules():
            self._hooks.append(module.register_forward_hook(partial(self._note, path), with_kwargs=True))
            if path in chosen:
                self.seen[path] = _Seen(drop_probability(module) is not None)
                self._hooks.append(module.register_forward_pre_hook(partial(self._enter, path), with_kwargs=True))
                self._hooks.append(module.register_forward_hook(partial(self._leave, path), with_kwargs=True))

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
        elif entering._version != version:
            seen.reason = "it changes its input in place"
        if seen.reason:
            return output
        seen.ends.append(value)
        if sums:
            seen.gives = "input"
            seen.scaled = any(_same_memory(value, each) and value._version == version for each, version in sums)
            passed = entering.clone()
        else:
            seen.zeros = torch.zeros_like(value).requires_grad_(True)
            passed = seen.zeros.clone()  # code may write to it
        return (passed, *output[1:]) if seen.outputs else passed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        pair = summands(func, args)
        skips = pair is not None and (self._in_stream(*pair) or self._in_stream(*pair[::-1]))
        result = func(*args, **(kwargs or {}))
        if skips and self._open is not None:
            self._open.stream.append((result, result._version))
        return result

    def _in_stream(self, one: Tensor, two: Tensor) -> bool:
        """Tell if one summand is the stream in a chosen module, and the other is computed from it.

        Outside of those, note whose zeros are added to something.
        """
        if self._open is not None:
            known = any(_same_memory(one, each) for each, _ in self._open.stream)
            return known and bool(_reached([two], {"": self._open.stream[0][0]}))
        waiting = {path: seen.zeros for path, seen in self.seen.items() if seen.zeros is not None and not seen.added}
        if waiting and not one.any() and two.any():
            for path in _reached([one], waiting):
                self.seen[path].added = True
        return False


def _same_memory(one: Tensor, two: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr() and one.numel() == two.numel()
