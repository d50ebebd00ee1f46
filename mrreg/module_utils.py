"""Dotted names of modules and parameters in a model; the model's own name is empty."""

from itertools import takewhile
from typing import Any

from torch import Tensor, nn


def join(path: str, name: str) -> str:
    """The name of something inside the module at path."""
    return f"{path}.{name}" if path else name


def common(one: str, two: str) -> str:
    """The name of the smallest module that holds both."""
    both = zip(one.split("."), two.split("."), strict=False)
    return ".".join(name for name, _ in takewhile(lambda names: names[0] == names[1], both))


def within(path: str, name: str) -> bool:
    """Whether a name lies in the module at path, or is it."""
    return not path or name == path or name.startswith(f"{path}.")


def holders(model: nn.Module) -> dict[int, list[str]]:
    """The modules that hold each parameter, by its id: more than one where parameters are tied."""
    found: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for parameter in module._parameters.values():
            found.setdefault(id(parameter), []).append(path)
    return found


def parameter(module: nn.Module, name: str) -> Tensor:
    """What stands under the dotted name of a parameter: that, or what functional_call has put in its place.

    `get_parameter` asks more on the way, which every step of every masked parameter would pay for.
    """
    *path, leaf = name.split(".")
    inner: Any = module
    try:
        for part in path:
            inner = inner._modules[part]
        return inner._parameters[leaf]  # type: ignore[no-any-return]
    except KeyError:
        gone = f"MultirateMask: {type(module).__name__} has no parameter {name!r} now."
        raise AttributeError(f"{gone} Parametrize, prune or change a module first, then wrap it.") from None
