"""Find the modules that can be off: those that the user names, or those with a skip connection of their own."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mrreg.errors import check, check_share, unknown_name
from mrreg.masks.blocks import first_input, switched, value_when_off
from mrreg.masks.groups import Block, UnitGroup
from mrreg.masks.install import MultirateMask
from mrreg.module_utils import within
from mrreg.thinning.admission import Admission
from mrreg.thinning.counts import DEFAULTS, Shares
from mrreg.thinning.paths import Path, find_paths
from mrreg.thinning.recorder import summands
from mrreg.thinning.trial import Trial
from mrreg.thinning.twin import WHERE, DoublePrecision, Inputs, double_copy, floats_in, probing, randomize, read_inputs

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
    watch = _Watch(twin, [path for path, _ in twin.named_modules() if path], off=False)
    watch.run(inputs)
    return [path for path, block in watch.blocks.items() if block.gives == "input" and path not in watch.reasons]


def find_blocks(twin: nn.Module, inputs: Inputs, chosen: Mapping[str, float]) -> tuple[list[UnitGroup], dict[str, str]]:
    """Return the group of the chosen modules that can be off one by one, and why the others cannot, by path."""
    randomize(twin)
    watch = _Watch(twin, chosen, off=True)
    watch.run(inputs)
    trial = _trial(twin, inputs, find_paths(twin, inputs))
    reasons = dict(watch.reasons)
    for path, block in watch.blocks.items():
        if path not in reasons and (reason := obstacle(trial, [block])):
            reasons[path] = reason
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


def admit_blocks(twin: nn.Module, inputs: Inputs, admission: Admission, group: UnitGroup) -> None:
    """Admit the group of blocks if they can be off along with units that are left out of the copy."""
    if reason := obstacle(_trial(twin, inputs, admission.paths), group.blocks):
        admission.reasons[group.name] = f"not along with the others: {reason}"
    else:
        admission.groups.append(group)


def _trial(twin: nn.Module, inputs: Inputs, paths: Sequence[Path]) -> Trial:
    """Return one in which modules such as DropPath keep all, whatever others have drawn before them."""
    return Trial(twin, inputs, [], [paths[0]._replace(largest=True)])


def obstacle(trial: Trial, blocks: Sequence[Block]) -> str:
    """Describe how the output changes if blocks are off and have noise for parameters, instead of being replaced."""
    modules = [(trial.twin.get_submodule(block.name), block) for block in blocks]
    handles = [module.register_forward_hook(partial(_replace, block), with_kwargs=True) for module, block in modules]
    trial.expect()
    for handle in handles:
        handle.remove()
    with torch.no_grad(), switched(trial.twin, blocks, Switched(frozenset(range(len(blocks))))):
        for module, _ in modules:
            for parameter in module.parameters():
                parameter.normal_()
        with torch.enable_grad():
            fault = trial.fault()
    randomize(trial.twin)
    return fault


def _replace(block: Block, _: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    value = value_when_off(block, args, kwargs)
    return (value, *output[1:]) if block.outputs else value


class _Watch(TorchFunctionMode):
    """Follows a forward: which modules add their input to what they compute, and what adds what the others give.

    If asked, they give what they would if they were off: zeros, or, with a skip of their own, their input.
    """

    def __init__(self, twin: nn.Module, paths: Collection[str], off: bool) -> None:
        super().__init__()
        self.twin, self.off = twin, off
        self.blocks: dict[str, Block] = {}
        self.reasons = dict.fromkeys(paths, "the forward on example_inputs does not call it")
        self._streams: list[list[tuple[Tensor, int]]] = []  # of open modules: input, sums with it, and their versions
        self._zeros: dict[str, Tensor] = {}

    def run(self, inputs: Inputs) -> None:
        """Run the forward."""
        handles: list[Any] = []
        for path in self.reasons:
            module = self.twin.get_submodule(path)
            handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            handles.append(module.register_forward_hook(partial(self._leave, path), with_kwargs=True))
        for tensor in floats_in(inputs):
            tensor.requires_grad_(True)
        try:
            with DoublePrecision(), self:  # type: ignore[no-untyped-call]
                self.twin(*inputs.args, **inputs.kwargs)
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        entering = first_input(args, kwargs)
        self._streams.append([] if entering is None else [(entering, entering._version)])

    def _leave(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        stream, value = self._streams.pop(), output[0] if type(output) is tuple and output else output
        own = tuple(name for name, _ in module.named_parameters(prefix=path))
        reason = _misfit(stream, value) or _owned(path, module, own)
        if reason:
            self.reasons[path] = reason
            return output
        (entering, _), *sums = stream
        same = (_same_memory(value, each) and value._version == version for each, version in sums)
        scaled, outputs = not sums or any(same), 0 if value is output else len(output)
        self.blocks[path] = Block(path, "input" if sums else "zeros", outputs, scaled, own)
        self.reasons.pop(path, None)
        if not self.off:
            return output
        if not sums and path not in self._zeros:
            self._zeros[path] = value.new_zeros(()).requires_grad_(True)
            self.reasons[path] = "its input is not added to its output, neither in it nor after it"
        passed = (entering if sums else self._zeros[path].expand(value.shape)).clone()  # code may write to it
        return (passed, *output[1:]) if outputs else passed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        pair = summands(func, args)
        stream = next((each for each in reversed(self._streams) if pair and _goes_on(each, *pair)), None)
        if pair and not self._streams and self._zeros:
            for one, two in (pair, pair[::-1]):
                if not one.any() and two.any():
                    for path in _reached(one, self._zeros):
                        self.reasons.pop(path, None)
        result = func(*args, **(kwargs or {}))
        if stream is not None:
            stream.append((result, result._version))
        return result


def _misfit(stream: Sequence[tuple[Tensor, int]], value: object) -> str:
    """Return what keeps a module that gives a value from being a block."""
    if not stream or not isinstance(value, Tensor) or not value.is_floating_point():
        return "it takes or returns something else than a tensor first"
    if value.shape != stream[0][0].shape:
        return "its output has another shape than its input"
    return "it changes its input in place" if stream[0][0]._version != stream[0][1] else ""


def _owned(path: str, module: nn.Module, own: Collection[str]) -> str:
    masks = [name for name, each in module.named_modules(prefix=path) if isinstance(each, MultirateMask)]
    return f"{masks[0]!r} is a MultirateMask" if masks else "" if own else "it has no parameters of its own"


def _goes_on(stream: Sequence[tuple[Tensor, int]], one: Tensor, two: Tensor) -> bool:
    """Tell if one summand is the stream in a module, and the other is computed from it."""
    return any(
        any(_same_memory(a, each) for each, _ in stream) and bool(_reached(b, {"": stream[0][0]}))
        for a, b in ((one, two), (two, one))
    )


def _reached(end: Tensor, targets: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the targets that a tensor was computed from."""
    if not end.requires_grad:
        return []
    asked = {name: each for name, each in targets.items() if each.requires_grad}
    grads = torch.autograd.grad(
        [end], list(asked.values()), [torch.ones_like(end)], retain_graph=True, allow_unused=True
    )
    return [name for name, grad in zip(asked, grads, strict=True) if grad is not None]


def _same_memory(one: Tensor, two: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr() and one.numel() == two.numel()
