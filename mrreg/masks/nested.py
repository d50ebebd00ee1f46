"""Tensors in the dicts and lists in which optimizers keep state."""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

Path = tuple[Any, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield what lies in nested mappings and sequences, each with the keys and positions that lead to it."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from leaves(each, (*path, name))
    elif isinstance(value, list | tuple | deque):
        for place, each in enumerate(value):
            yield from leaves(each, (*path, place))
    else:
        yield path, value


def replaced(value: Any, change: Callable[[Path, Tensor], Tensor], path: Path = ()) -> Any:
    """Return nested mappings and sequences with other tensors in them."""
    if isinstance(value, Tensor):
        return change(path, value)
    if isinstance(value, MutableMapping):
        made: Any = copy.copy(value)
        for name, each in value.items():
            made[name] = replaced(each, change, (*path, name))
        return made
    if isinstance(value, list | tuple | deque):
        parts = [replaced(each, change, (*path, place)) for place, each in enumerate(value)]
        if isinstance(value, tuple):
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        made = copy.copy(value)
        made.clear()
        made.extend(parts)
        return made
    return value
