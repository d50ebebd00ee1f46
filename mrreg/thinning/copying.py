"""Copies of models and of the hooks of users, which may run without anything of the original being written to."""

import dis
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mrreg.errors import warn
from mrreg.isolation import deep_copy

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def copy_hooks(where: str, model: nn.Module, memo: dict[int, Any]) -> None:
    """Give the copy of a model, all of which `memo` knows, copies of the forward hooks.

    A hook that cannot be copied becomes one after which everything depends on everything.
    """
    for path, module in model.named_modules():
        for name, unknown in zip(HOOKS, (_mix_outputs, _mix_inputs), strict=False):
            for key, hook in getattr(module, name).items():
                try:
                    copied = own_copy(hook, memo)
                except Exception as error:
                    told = f"a hook of {path or 'the model'!r} cannot be copied ({type(error).__name__}: {error})"
                    warn(f"{where}: {told}, so units around it are kept. Register it after this call.", UserWarning)
                    copied = unknown
                getattr(memo[id(module)], name)[key] = copied


def own_copy(value: Any, memo: dict[int, Any], home: dict[str, Any] | None = None) -> Any:
    """Copy a function along with all that it refers to in its closure, its object and its module, of which `home` is.

    Functions of other modules are taken as they are.
    """
    if isinstance(value, MethodType):
        return MethodType(own_copy(value.__func__, memo), deep_copy(value.__self__, memo))
    if isinstance(value, partial):
        given = deep_copy((value.args, value.keywords), memo)
        return partial(own_copy(value.func, memo), *given[0], **given[1])
    if not isinstance(value, FunctionType) or (home is not None and value.__globals__ is not home):
        return value if isinstance(value, ModuleType) else deep_copy(value, memo)
    if id(value) not in memo:
        names, cells = dict(value.__globals__), tuple(CellType() for _ in value.__closure__ or ())
        defaults = deep_copy(value.__defaults__, memo)
        memo[id(value)] = made = FunctionType(value.__code__, names, value.__name__, defaults, cells)
        made.__kwdefaults__ = deep_copy(value.__kwdefaults__, memo)
        for cell, whole in zip(cells, value.__closure__ or (), strict=True):
            cell.cell_contents = own_copy(whole.cell_contents, memo, value.__globals__)
        read = [each for each in _globals_of(value.__code__) if each in names]
        names.update({each: own_copy(names[each], memo, value.__globals__) for each in read})
    return memo[id(value)]


def _globals_of(code: CodeType) -> set[str]:
    inner = [_globals_of(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {each.argval for each in dis.get_instructions(code) if "GLOBAL" in each.opname}.union(*inner)


def _mixed(value: Any) -> Any:
    """Stand for what an unknown hook makes: all of it depends on all of it."""
    return tree_map_only(Tensor, lambda each: each + each.sum() if each.is_floating_point() else each, value)


def _mix_outputs(*given: Any) -> Any:
    return _mixed(given[-1])


def _mix_inputs(_: nn.Module, *given: Any) -> Any:
    return _mixed(given) if len(given) > 1 else _mixed(given[0])
