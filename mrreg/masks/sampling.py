"""The slow subset as a pure function of (seed, parameter index, cycle, flat index).

Hashes in torch's integer operations: the same on every device, rank and shard, without communication and without any
global random state.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mrreg.distributed.sharding import cut, is_sharded, window
from mrreg.masks.masked_tensor import ReusableBuffer, bits_dtype

HALF = 1 << 30  # hash values lie in [-HALF, HALF)
BLOCK = 1 << 20  # entries that are drawn at once
PLACES, APART = 1 << 18, 4  # where in the table they may begin: compilers for GPUs copy what is not at 16 bytes
STEP = 0x5BD1E995  # neighbouring counters differ by this
WORD = (1 << 64) - 1
SMALL = 1 << 16  # entries that take as long to draw as a few
RECENT = 4  # shares of slow entries whose bits are kept

Key = tuple[int, int, int]  # seed, index of the parameter, cycle

_tables: dict[torch.device, Tensor] = {}
_recent: dict[tuple[object, ...], "_Share"] = {}  # the last one at the end


def _mix(*words: int) -> int:
    """Hash whole numbers of any size to 64 bits (the finalizer of splitmix64, once per word)."""
    mixed = 0
    for word in words:
        mixed = (mixed + word + 0x9E3779B97F4A7C15) & WORD
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
        mixed ^= mixed >> 31
    return mixed


def _signed(word: int) -> int:
    """The low 32 bits as the int32 that has them."""
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _pieces(start: int, count: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut [start, start + count) at multiples of size: (first flat index, how many)."""
    while count > 0:
        piece = min(count, size - start % size)
        yield start, piece
        start, count = start + piece, count - piece


def hashes(count: int, key: Key, device: torch.device) -> Tensor:
    """Hash values in [-HALF, HALF) of the whole numbers below `count`.

    An arithmetic shift copies the sign bit, so that the first shift clears the highest bit; the multiplications mix
    the other 31 into all.
    """
    mixed = _mix(*key, 0)
    values = torch.arange(count, dtype=torch.int32, device=device).mul_(STEP).add_(_signed(mixed))
    values ^= values >> 15
    values.mul_(0x21F0AAAD).add_(_signed(mixed >> 32))
    values ^= values >> 13
    return values.mul_(0x735A2D97).bitwise_right_shift_(1)


def _table(like: Tensor) -> Tensor:
    """Random numbers of 32 bits, the same for everything that is drawn entry by entry."""
    known = _tables.get(like.device)
    if known is not None and type(like) is Tensor:
        return known
    upper, lower = (hashes(BLOCK + PLACES * APART, (0, 0, half), like.device) for half in range(2))
    table = upper.bitwise_left_shift_(16).bitwise_xor_(lower)
    if type(table) is Tensor:  # one without data, of a dry run, is of no use later
        _tables[like.device] = table
    return table


def _place(key: Key, block: int) -> int:
    """Where in the table a block of entries begins."""
    return _mix(*key, block) % PLACES * APART


def _fast(p: float) -> int:
    """How many of the numbers of 32 bits make an entry fast."""
    return round((1 - p) * (1 << 32))


def _compare(numbers: Tensor, fast: int, out: Tensor) -> Tensor:
    """Bits from random numbers: 0 for the largest, -1 for the others."""
    return torch.le(numbers, fast - (1 << 31) - 1, out=out).neg_() if fast else out.zero_()


def fill_bits(values: Tensor, key: Key, p: float, start: int = 0) -> Tensor:
    """Fill a vector of whole numbers with bits of entries drawn one by one: 0 where slow, with probability p, else -1.

    Entry i is slow where T[place + i] is among the largest. T is a table of random numbers that never changes, and the
    place a hash of the key, as in evolution strategies that share a table of noise (Salimans et al. 2017). So the
    entries of a mask are independent, and so is one entry in any two cycles; whole masks are parts of one long mask.

    `start` is the flat index of the first one, for a shard of a parameter.
    """
    table = _table(values)
    for first, piece in _pieces(start, len(values), BLOCK):
        block, low = divmod(first, BLOCK)
        place = _place(key, block) + low
        _compare(table[place : place + piece], _fast(p), values[first - start : first - start + piece])
    return values


class _Share:
    """The bits of the whole table for one p, once it is worth the time to make them."""

    def __init__(self) -> None:
        self.drawn = 0
        self.bits: Tensor | None = None


def ready_bits(value: Tensor, key: Key, p: float, dtype: torch.dtype) -> Tensor | None:
    """What `fill_bits` gives for all entries of a tensor: a part of bits that exist, which nobody may write to.

    None where they do not exist: for more than a block, and until as many as exist have been drawn with this p.
    """
    if value.numel() > BLOCK or type(value) is not Tensor:
        return None
    share = _fast(p), dtype, value.device
    known = _recent[share] = _recent.pop(share, _Share())
    for oldest in list(_recent)[:-RECENT]:
        _recent.pop(oldest, None)
    known.drawn += max(value.numel(), SMALL)
    if known.bits is None and known.drawn > BLOCK + PLACES * APART:
        table = _table(value)
        known.bits = _compare(table, share[0], torch.empty_like(table, dtype=dtype))
    if known.bits is None:
        return None
    place = _place(key, 0)
    return known.bits[place : place + value.numel()].view(value.shape)


def draw_kept(key: Key, kept: int, units: int, device: torch.device) -> Tensor:
    """Ascending indices of the `kept` units with the largest hash values."""
    return hashes(units, key, device).argsort(stable=True)[units - kept :].sort().values


def draw_units(key: Key, p: float, units: int, device: torch.device) -> Tensor:
    """Bits of whole units: 0 for round(p * units) of them, -1 for the others."""
    bits = torch.zeros(units, dtype=torch.int32, device=device)
    bits[draw_kept(key, units - round(p * units), units, device)] = -1
    return bits


def draw_bits(value: Tensor, key: Key, p: float, memory: ReusableBuffer | None = None) -> Tensor:
    """Bits of the local entries of a tensor, drawn one by one; with memory, also such as nobody may write to."""
    dtype = bits_dtype(value)
    if memory is not None and (ready := ready_bits(value, key, p, dtype)) is not None:
        return ready
    shape, start = window(value) if is_sharded(value) else (value.shape, (0,) * value.dim())
    if shape[1:] != value.shape[1:]:  # not cut along the first dimension alone: draw everything
        whole = torch.empty(value.numel(), dtype=dtype, device=value.device)
        return cut(fill_bits(whole, key, p).view(value.shape), value)
    size = torch.Size(shape)
    if memory is None:
        bits = torch.empty(size, dtype=dtype, device=value.device)
    else:
        bits = memory.get(size, dtype, value.device)
    fill_bits(bits.view(-1), key, p, start[0] * math.prod(shape[1:]) if start else 0)
    return bits
