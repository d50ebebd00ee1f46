"""Blocks that can be off: a module that belongs to one is called, or something stands for its output."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mrreg.masks.groups import Block, BlockCall


class Switches(Protocol):
    """Which blocks are off, by number, on masked steps; the others count `block_factor` times."""

    off: frozenset[int]
    block_factor: float

    @property
    def masked(self) -> bool:
        """True on masked steps."""


class BlockForward:
    """Stands for the forward of a module, in its instance; what is recomputed finds the same blocks off."""

    def __init__(self, module: nn.Module, call: BlockCall, number: int, switches: Switches) -> None:
        self.module, self.call, self.number, self.switches = module, call, number, switches
        self.before: Callable[..., Any] | None = vars(module).get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, or give what stands for its output."""
        switches, call = self.switches, self.call
        if not switches.masked:
            return self._computed(args, kwargs)
        if self.number in switches.off:
            value = value_when_off(call, args, kwargs)
            return (value, *[None] * (call.outputs - 1)) if call.outputs else value
        output = self._computed(args, kwargs)
        if not call.scaled or switches.block_factor == 1:
            return output
        value = output[0] if call.outputs else output
        if call.gives == "zeros":
            value = value * switches.block_factor
        else:
            entering = first_input(args, kwargs)
            value = entering + (value - entering) * switches.block_factor
        return (value, *output[1:]) if call.outputs else value

    def _computed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.call.drops and self.module.training:
            return first_input(args, kwargs)
        if self.before is not None:
            return self.before(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the first floating-point tensor among the arguments of a call; None if there is none."""
    given = (*args, *kwargs.values())
    return next((each for each in given if isinstance(each, Tensor) and each.is_floating_point()), None)


def value_when_off(call: BlockCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return what the module of a block that is off gives."""
    entering: Tensor = first_input(args, kwargs)
    return torch.zeros_like(entering) if call.gives == "zeros" else entering


def put_in(model: nn.Module, blocks: Iterable[Block], switches: Switches) -> None:
    """Let the modules of blocks be called only where switches say so."""
    for number, block in enumerate(blocks):
        for call in block.calls:
            module = model.get_submodule(call.module)
            vars(module)["forward"] = BlockForward(module, call, number, switches)


def take_out(model: nn.Module) -> None:
    """Give modules of blocks the forward back that they had."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, BlockForward):
            del vars(module)["forward"]
            if forward.before is not None:
                vars(module)["forward"] = forward.before


@contextmanager
def switched(model: nn.Module, blocks: Iterable[Block], switches: Switches) -> Iterator[None]:
    """Let modules of blocks be called, inside a `with` block, only where switches say so."""
    put_in(model, blocks, switches)
    try:
        yield
    finally:
        take_out(model)
