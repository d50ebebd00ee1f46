"""Blocks that can be off: a module that is one is called, or something stands for its output."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.masks.groups import Block


class BlockForward:
    """Stands for the forward of a block, in its instance, while switches, a mask, say which blocks are off."""

    def __init__(self, module: nn.Module, block: Block, number: int, switches: Any) -> None:
        self.module, self.block, self.number, self.switches = module, block, number, switches
        self.before: Callable[..., Any] | None = vars(module).get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, or give what stands for its output."""
        masked, block, factor = self.switches.masked, self.block, self.switches.block_factor
        if masked and self.number in self.switches.off:
            value = value_when_off(block, args, kwargs)
            return (value, *[None] * (block.outputs - 1)) if block.outputs else value
        output = (
            self.before(*args, **kwargs) if self.before else type(self.module).forward(self.module, *args, **kwargs)
        )
        if not masked or not block.scaled or factor == 1:
            return output
        value = output[0] if block.outputs else output
        passed = value_when_off(block, args, kwargs)
        scaled = value * factor if block.gives == "zeros" else passed + (value - passed) * factor
        return (scaled, *output[1:]) if block.outputs else scaled


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the first floating-point tensor among the arguments of a call; None if there is none."""
    given = (*args, *kwargs.values())
    return next((each for each in given if isinstance(each, Tensor) and each.is_floating_point()), None)


def value_when_off(block: Block, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return what a block that is off gives, or gives first."""
    entering: Tensor = first_input(args, kwargs)
    return torch.zeros_like(entering) if block.gives == "zeros" else entering


def put_in(model: nn.Module, blocks: Iterable[Block], switches: Any) -> None:
    """Let blocks be called only where switches say so."""
    for number, block in enumerate(blocks):
        module = model.get_submodule(block.name)
        vars(module)["forward"] = BlockForward(module, block, number, switches)


def take_out(model: nn.Module) -> None:
    """Give blocks the forward back that they had."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, BlockForward):
            del vars(module)["forward"]
            if forward.before is not None:
                vars(module)["forward"] = forward.before


@contextmanager
def switched(model: nn.Module, blocks: Iterable[Block], switches: Any) -> Iterator[None]:
    """Let blocks be called, inside a `with` block, only where switches say so."""
    put_in(model, blocks, switches)
    try:
        yield
    finally:
        take_out(model)
