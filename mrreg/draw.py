"""The slow subset as a pure function of (seed, parameter index, cycle, flat index).

A counter-based hash in torch's integer operations: the same on every device, rank and shard, without communication
and without any global random state.
"""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

HALF = 1 << 30  # hash values lie in [-HALF, HALF): differences of two fit in an int32
BLOCK = 1 << 30  # flat indices that share a key
CHUNK = 1 << 19  # entries hashed at once on a CPU: few calls, and the operands stay in its last cache
CHUNK_ELSEWHERE = 1 << 22
STEP = 0x5BD1E995  # neighbouring counters differ by this
WORD = (1 << 64) - 1

Key = tuple[int, int, int]  # seed, index of the parameter, cycle


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


@functools.cache
def _counters(count: int, device: torch.device) -> Tensor:
    """Multiples of STEP modulo 2**32."""
    return torch.arange(count, dtype=torch.int32, device=device).mul_(STEP)


def _constant(value: int) -> Tensor:
    """A whole number as a tensor without dimensions, which fits operands on any device."""
    return torch.tensor(value, dtype=torch.int32)


def _scramble(counter: Tensor, key: int, spare: Tensor) -> None:
    """Replace int32 counters by hash values in [-HALF, HALF), in place.

    An arithmetic shift copies the sign bit, so that the first two lines clear the highest bit; the multiplication
    mixes the other 31 into all.
    """
    counter.bitwise_xor_(torch.bitwise_right_shift(counter, 15, out=spare))
    torch.add(_constant(_signed(key)), counter, alpha=0x21F0AAAD, out=counter)  # multiply and add in one pass
    counter.bitwise_xor_(torch.bitwise_right_shift(counter, 13, out=spare)).mul_(0x735A2D97)
    counter.bitwise_right_shift_(1)


def _pieces(start: int, count: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut [start, start + count) at multiples of size: (first flat index, how many)."""
    while count > 0:
        piece = min(count, size - start % size)
        yield start, piece
        start, count = start + piece, count - piece


def _hashed(values: Tensor, key: Key, start: int) -> Iterator[Tensor]:
    """Fill with hash values of the flat indices start, start + 1, ...; yields each piece while it is in the cache."""
    size = CHUNK if values.device.type == "cpu" else CHUNK_ELSEWHERE
    spare = torch.empty_like(values[:size])
    for first, piece in _pieces(start, len(values), size):
        block, low = divmod(first, BLOCK)
        mixed, inside = _mix(*key, block), low % size
        counter = values[first - start : first - start + piece]
        offset = _signed((low - inside) * STEP + mixed)
        torch.add(_counters(size, values.device)[inside : inside + piece], offset, out=counter)
        _scramble(counter, mixed >> 32, spare[:piece])
        yield counter


def fill_hashes(values: Tensor, key: Key, start: int = 0) -> Tensor:
    """Fill with hash values of the flat indices start, start + 1, ... for a key."""
    for _ in _hashed(values, key, start):
        pass
    return values


def fill_bits(values: Tensor, key: Key, p: float, start: int = 0) -> Tensor:
    """Fill an int32 vector with bits of entries drawn one by one: 0 where slow (probability p), -1 where fast.

    `start` is the flat index of the first one, for a shard of a parameter.
    """
    for piece in _hashed(values, key, start):
        torch.lt(piece, round((1 - 2 * p) * HALF), out=piece).neg_()
    return values


def draw_units(key: Key, p: float, units: int, device: torch.device) -> Tensor:
    """Bits of whole units: 0 for the round(p * units) with the smallest hash values, -1 for the others."""
    bits = torch.full((units,), -1, dtype=torch.int32, device=device)
    hashes = fill_hashes(torch.empty_like(bits), key)
    bits[hashes.argsort(stable=True)[: round(p * units)]] = 0
    return bits
