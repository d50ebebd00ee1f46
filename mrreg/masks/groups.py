"""Groups of units that are absent together, and the places of their entries in a model's parameters and buffers."""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Role = Literal["producer", "member", "consumer"]
Kind = Literal["hidden", "heads", "channels", "inputs", "outputs", "stream", "rank", "blocks", "none"]


@dataclass(frozen=True)
class Slot:
    """Positions of the units of a group in one parameter or buffer.

    Its role: "producer" computes the units (rows), "consumer" reads them (columns), "member" belongs to them alone
    (biases, BatchNorm, depthwise kernels).
    """

    name: str  # of the tensor in the model (the first, where it is tied)
    dim: int  # that counts units
    # along `dim` that belong to each unit, (units, entries per unit)
    indices: Tensor = field(repr=False, compare=False)
    role: Role
    size: int = 0  # length of the dimension, if it has other positions too

    @property
    def length(self) -> int:
        """Length of the dimension."""
        return self.size or self.indices.numel()


@dataclass(frozen=True)
class Block:
    """A module that is not called while it is off: a residual branch, or a block with its own skip."""

    name: str  # its path
    gives: Literal["zeros", "input"]  # what stands for its output: zeros like its first input, or that
    outputs: int  # length of the tuple that it returns, whose later elements are None then; 0 if it returns a tensor
    scaled: bool  # what it adds to the stream is multiplied where blocks are rescaled
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class UnitGroup:
    """Units that are absent together: absent means that the consumers' columns count as zero.

    Those of kind "outputs" are what one layer gives: its rows, or a norm's behind it, count as columns that read them.
    Blocks have no slots.
    """

    name: str  # path of the module that owns the first producer (for "inputs": consumer), unique in the model
    kind: Kind
    units: int
    kept: int  # number that is present on a masked step
    slots: tuple[Slot, ...]
    blocks: tuple[Block, ...] = ()  # the units, if they are blocks
    zeroed: bool = False  # absent units are computed, and the columns that read them are zero: nothing gets smaller

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
