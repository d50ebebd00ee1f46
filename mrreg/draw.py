"""The slow subset as a pure function of (seed, parameter index, cycle, flat index).

Hashes in torch's integer operations: the same on every device, rank and shard, without communication and without any
global random state.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

HALF = 1 << 30  # hash values lie in [-HALF, HALF)
TABLE = 1 << 20  # entries that share a key; the table of so many stays in a CPU's last cache
STEP = 0x5BD1E995  # neighbouring counters differ by this
WORD = (1 << 64) - 1

Key = tuple[int, int, int]  # seed, index of the parameter, cycle

_tables: dict[torch.device, Tensor] = {}


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


def _constant(value: int) -> Tensor:
    """A whole number as a tensor without dimensions, which fits operands on any device."""
    return torch.tensor(value, dtype=torch.int32, device="cpu")


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


def _table(device: torch.device) -> Tensor:
    """Random numbers of 32 bits, the same for everything that is drawn entry by entry."""
    known = _tables.get(device)
    if known is not None:
        return known
    upper, lower = (hashes(TABLE, (0, 0, half), device) for half in range(2))
    table = upper.bitwise_left_shift_(16).bitwise_xor_(lower)
    if type(table) is Tensor:  # one without data, of a dry run, is of no use later
        _tables[device] = table
    return table


def fill_bits(values: Tensor, key: Key, p: float, start: int = 0) -> Tensor:
    """Fill an int32 vector with bits of entries drawn one by one: 0 where slow (probability p), -1 where fast.

    Entry i is slow where a * T[i] + b modulo 2**32 is among the largest. T are fixed random numbers; a (odd) and b are
    hashes of the key. Entries in pairs, and one entry in any two cycles, are then slow as if independently, but for a
    few hundred of 5e11 pairs in the table: what a full hash of each entry gives, at several times the cost.

    `start` is the flat index of the first one, for a shard of a parameter.
    """
    fast = round((1 - p) * (1 << 32))  # how many of the values
    if not fast:
        return values.zero_()
    table = _table(values.device)
    for first, piece in _pieces(start, len(values), TABLE):
        block, low = divmod(first, TABLE)
        mixed = _mix(*key, block)
        drawn = values[first - start : first - start + piece]
        torch.add(_constant(_signed(mixed)), table[low : low + piece], alpha=_signed(mixed >> 32) | 1, out=drawn)
        torch.le(drawn, fast - (1 << 31) - 1, out=drawn).neg_()
    return values


def draw_units(key: Key, p: float, units: int, device: torch.device) -> Tensor:
    """Bits of whole units: 0 for the round(p * units) with the smallest hash values, -1 for the others."""
    bits = torch.full((units,), -1, dtype=torch.int32, device=device)
    bits[hashes(units, key, device).argsort(stable=True)[: round(p * units)]] = 0
    return bits
