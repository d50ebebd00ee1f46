"""Find the output channels of earlier operations that reach each input channel of a later one."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mrreg.thinning.recorder import Recording

Source = tuple[int, int]  # number of the operation in the recording, output channel


@dataclass(frozen=True)
class Block:
    """Neighbouring input channels that the same units reach.

    Args:
        start: The first channel.
        stop: One past the last.
        sources: All output channels that reach one of them.
    """

    start: int
    stop: int
    sources: frozenset[int]

    def halves(self) -> tuple["Block", "Block"]:
        """The two halves, with the sources of the whole."""
        middle = (self.start + self.stop) // 2
        return replace(self, stop=middle), replace(self, start=middle)

    def ends(self) -> tuple["Block", "Block"]:
        """The first and the last channel, with the sources of the whole."""
        return replace(self, stop=self.start + 1), replace(self, start=self.stop - 1)


class Influence:
    """Reads the cut graph backwards: gradients of some input channels say which output channels reach them.

    Args:
        recording: The graph.
        taken: The tensor whose channels are asked about.
        dim: The dimension that counts them.
    """

    def __init__(self, recording: Recording, taken: Tensor, dim: int) -> None:
        self.taken, self.dim, self.size = taken, dim, (taken.shape or (1,))[dim]
        self.seed = torch.rand(taken.shape, device=taken.device, dtype=torch.float64) + 0.5
        self._all = [op.made for op in recording.ops]
        grads = self.gradients(None, self._all + recording.inputs)
        self.used = [(i, op) for i, op in enumerate(recording.ops) if grads[i] is not None]
        self.reads_input = any(grad is not None for grad in grads[len(self._all) :])
        self.offsets = [0]
        for _, op in self.used:
            self.offsets.append(self.offsets[-1] + op.made.shape[op.made_dim])

    def gradients(self, columns: Tensor | None, targets: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients of a random sum over some channels (or all), with respect to the targets."""
        if not (self.taken.requires_grad and targets):
            return [None] * len(targets)
        seed = self.seed
        if columns is not None:
            shape = [1] * seed.dim()
            shape[self.dim] = -1
            seed = seed * columns.to(seed).reshape(shape)
        grads = torch.autograd.grad([self.taken], targets, [seed], retain_graph=True, allow_unused=True)
        return list(grads)

    def reached(self, columns: Tensor | None) -> Tensor:
        """Tell for every output channel of the used operations, one after another, if it reaches one of the columns."""
        grads = self.gradients(columns, [op.made for _, op in self.used])
        parts = []
        for grad, (_, op) in zip(grads, self.used, strict=True):
            if grad is None:
                parts.append(torch.zeros(op.made.shape[op.made_dim], dtype=torch.bool))
            else:
                others = [d for d in range(grad.dim()) if d != op.made_dim % grad.dim()]
                hit = grad.ne(0)
                parts.append((hit.sum(others) > 0 if others else hit).cpu())  # a sum over no dimensions is one over all
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)

    def source(self, flat: int) -> Source:
        """Turn a number among all used output channels into operation and channel."""
        place = bisect_right(self.offsets, flat) - 1
        return self.used[place][0], flat - self.offsets[place]

    def blocks(self) -> list[Block]:
        """Split the input channels into blocks that belong to one unit each, halving them while that shows more.

        Halves without a common source are looked at apart. Where the halves have one, and the first and the last
        channel do, the block is taken to be one unit (a head, a position in the flattened output of a convolution).
        """
        done: list[Block] = []
        pending = _open([Block(0, self.size, _members(self.reached(None)))], done)
        while pending:
            halves = self._narrow([half for block in pending for half in block.halves()])
            pairs = list(zip(halves[::2], halves[1::2], strict=True))
            doubtful = [i for i, (one, two) in enumerate(pairs) if one.sources & two.sources]
            ends = self._narrow([end for i in doubtful for end in pending[i].ends()])
            whole = {
                i for i, one, two in zip(doubtful, ends[::2], ends[1::2], strict=True) if one.sources & two.sources
            }
            done += [pending[i] for i in whole]
            pending = _open([half for i, pair in enumerate(pairs) if i not in whole for half in pair], done)
        return done

    def _narrow(self, blocks: Sequence[Block]) -> list[Block]:
        """Leave each block the sources that really reach it; blocks without common sources share a pass."""
        results: dict[int, Block] = {}
        for members in _compatible(blocks):
            columns = torch.zeros(self.size, dtype=torch.bool)
            for i in members:
                columns[blocks[i].start : blocks[i].stop] = True
            reached = _members(self.reached(columns))
            for i in members:
                results[i] = replace(blocks[i], sources=blocks[i].sources & reached)
        return [results[i] for i in range(len(blocks))]


def _open(blocks: Sequence[Block], done: list[Block]) -> list[Block]:
    """Return the blocks that may hold channels of several units, and add the others to those that are done."""
    opened = [block for block in blocks if block.stop - block.start > 1 and len(block.sources) > 1]
    done += [block for block in blocks if block.sources and (block.stop - block.start == 1 or len(block.sources) == 1)]
    return opened


def _members(mask: Tensor) -> frozenset[int]:
    return frozenset(mask.nonzero().flatten().tolist())


def _compatible(blocks: Sequence[Block]) -> list[list[int]]:
    """Sort blocks, by number, into few lists in which no two have a source in common."""
    colours: list[tuple[set[int], list[int]]] = []
    for i, block in enumerate(blocks):
        fitting = next((colour for colour in colours if colour[0].isdisjoint(block.sources)), None)
        if fitting is None:
            fitting = set(), []
            colours.append(fitting)
        fitting[0].update(block.sources)
        fitting[1].append(i)
    return [members for _, members in colours]
