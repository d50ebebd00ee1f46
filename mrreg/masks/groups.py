"""Groups of units that are absent together, and the places of their entries in a model's parameters and buffers."""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Role = Literal["producer", "member", "consumer"]
Kind = Literal["hidden", "heads", "channels", "inputs", "outputs", "stream", "rank", "blocks"]


@dataclass(frozen=True)
class Slot:
    """Positions of the units of a group in one parameter or buffer.

    Args:
        name: Dotted name in the model (the first, where it is tied).
        dim: The dimension that counts units.
        indices: Positions along `dim` that belong to each unit, (units, entries per unit).
        role: "producer" computes the units (rows), "consumer" reads them (columns), "member" belongs to them alone
            (biases, BatchNorm, depthwise kernels).
        size: Length of the dimension, if it has other positions too; else 0.
    """

    name: str
    dim: int
    indices: Tensor = field(repr=False, compare=False)
    role: Role
    size: int = 0

    @property
    def length(self) -> int:
        """Length of the dimension."""
        return self.size or self.indices.numel()


@dataclass(frozen=True)
class BlockCall:
    """A module that is not called while its block is off, and what stands for its output.

    Args:
        module: Path of the module.
        gives: "zeros" like its first input, or that "input".
        outputs: Length of the tuple that it returns, whose later elements are None then; 0 if it returns a tensor.
        scaled: True if what it adds to the stream is multiplied where blocks are rescaled.
        drops: True if it drops paths itself: in training it passes its input on instead.
    """

    module: str
    gives: Literal["zeros", "input"]
    outputs: int
    scaled: bool
    drops: bool = False


@dataclass(frozen=True)
class Block:
    """A residual branch, or a block with its own skip, that can be off.

    Args:
        name: Path of the module that ends it.
        calls: That module, then those that work for it alone.
        parameters: Names of the parameters that nothing else uses.
    """

    name: str
    calls: tuple[BlockCall, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class UnitGroup:
    """Units that are absent together: absent means that the consumers' columns count as zero.

    Args:
        name: Path of the module that owns the first producer (for "inputs": consumer), unique in the model.
        kind: Kind of the units. Those of "outputs" are what one layer gives: its rows count as columns that read them.
        units: Number of units.
        kept: Number of units that are present on a masked step.
        slots: Every place where entries of a unit lie.
        blocks: The units, if they are blocks: those have no slots.
        zeroed: True if absent units are computed, and the columns that read them are zero: nothing gets smaller.
    """

    name: str
    kind: Kind
    units: int
    kept: int
    slots: tuple[Slot, ...]
    blocks: tuple[Block, ...] = ()
    zeroed: bool = False

    @property
    def keeps_shape(self) -> bool:
        """True if absent entries stay, at zero: what is around the layer gives or takes all units."""
        return self.zeroed or self.kind in ("inputs", "outputs")


@dataclass(frozen=True)
class AttributeOverride:
    """An integer attribute of a module that holds a count of units, and its value while units are absent."""

    module: str
    attribute: str
    value: int | list[int] | tuple[int, ...]
