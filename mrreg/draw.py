"""The slow subset as a pure function of (seed, parameter index, cycle, flat index).

A counter-based hash in torch's integer operations: the same on every device, rank and shard, without communication
and without any global random state. Values are kept in 31 bits, so that a comparison is one subtraction and one shift.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

RANGE = 1 << 31  # hash values lie in [0, RANGE)
BLOCK = 1 << 30  # flat indices that share a key; their low bits fit in an int32
CHUNK = 1 << 16  # entries hashed at once on a CPU: the operands stay in its cache
WORD = (1 << 64) - 1


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


def _scramble(counter: Tensor, key: int) -> None:
    """Replace int32 counters by hash values in [0, RANGE), in place.

    An arithmetic shift copies the sign bit, so each round clears the highest bit; the multiplication after it mixes
    31 bits back into 32, and the last round leaves 31.
    """
    counter.mul_(0x5BD1E995).add_(_signed(key))
    counter.bitwise_xor_(counter >> 15).mul_(0x21F0AAAD).add_(_signed(key >> 32))
    counter.bitwise_xor_(counter >> 13).mul_(0x735A2D97)
    counter.bitwise_xor_(counter >> 16)


def _pieces(start: int, count: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut [start, start + count) at multiples of size: (first flat index, how many)."""
    while count > 0:
        piece = min(count, size - start % size)
        yield start, piece
        start, count = start + piece, count - piece


def fill_hashes(values: Tensor, key: tuple[int, int, int], start: int = 0) -> Tensor:
    """Fill with hash values in [0, 2**31) of the flat indices start, start + 1, ... for a key (seed, index, cycle)."""
    for first, piece in _pieces(start, len(values), CHUNK if values.device.type == "cpu" else BLOCK):
        block, low = divmod(first, BLOCK)
        counter = values[first - start : first - start + piece]
        torch.arange(low, low + piece, out=counter)
        _scramble(counter, _mix(*key, block))
    return values


def fill_bits(values: Tensor, key: tuple[int, int, int], p: float, start: int = 0) -> Tensor:
    """Fill an int32 vector with bits of entries drawn one by one: 0 where slow (probability p), -1 where fast.

    `start` is the flat index of the first one, for a shard of a parameter.
    """
    return fill_hashes(values, key, start).neg_().add_(round(p * RANGE) - 1).bitwise_right_shift_(31)


def draw_units(key: tuple[int, int, int], p: float, units: int, device: torch.device) -> Tensor:
    """Bits of whole units: 0 for the round(p * units) with the smallest hash values, -1 for the others."""
    bits = torch.full((units,), -1, dtype=torch.int32, device=device)
    hashes = fill_hashes(torch.empty_like(bits), key)
    bits[hashes.argsort(stable=True)[: round(p * units)]] = 0
    return bits
