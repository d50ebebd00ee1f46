"""The slow subset as a pure function of (seed, parameter index, cycle, flat index).

It is computed by a counter-based hash in torch's integer operations, so that every device, rank and shard draws the
same entries without communication, and no random generator is read or moved.
"""

import torch
from torch import Tensor

from mrreg.distributed.sharding import cut
from mrreg.hashing import splitmix64
from mrreg.masks.entries import bits_dtype

HALF = 1 << 30  # hash values lie in [-HALF, HALF)
BLOCK = 1 << 20  # entries hashed at once: bounds the temporary memory, and counters stay far below 2^31
STEP = 0x5BD1E995  # odd, so that multiples of it run through all of int32 before one comes again

Key = tuple[int, int, int]  # seed, index of the parameter, cycle


def _signed(word: int) -> int:
    """Return the int32 that has the low 32 bits of a word."""
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def hashes(count: int, key: Key, device: torch.device, block: int = 0) -> Tensor:
    """Return hash values in [-HALF, HALF) of the counters 0, 1, … of one block, as int32 (count,)."""
    mixed = splitmix64(*key, block)
    values = torch.arange(count, dtype=torch.int32, device=device).mul_(STEP).add_(_signed(mixed))
    # torch has only arithmetic shifts, which copy the sign: the first one clears the highest bit, and the
    # multiplications mix the other 31 into all.
    values ^= values >> 15
    values.mul_(0x21F0AAAD).add_(_signed(mixed >> 32))
    values ^= values >> 13
    return values.mul_(0x735A2D97).bitwise_right_shift_(1)


def fill_bits(values: Tensor, key: Key, p: float) -> Tensor:
    """Fill a vector of integers with the bits of entries drawn one by one: 0 (slow) with probability p, else -1."""
    last_fast = round((1 - p) * 2 * HALF) - HALF - 1
    for block, piece in enumerate(torch.split(values, BLOCK)):
        torch.le(hashes(len(piece), key, values.device, block), last_fast, out=piece).neg_()
    return values


def draw_kept(key: Key, kept: int, units: int, device: torch.device) -> Tensor:
    """Return the ascending indices of the `kept` units with the largest hash values."""
    return hashes(units, key, device).argsort(stable=True)[units - kept :].sort().values


def draw_units(key: Key, p: float, units: int, device: torch.device) -> Tensor:
    """Return the bits of whole units, int32 (units,): 0 for the round(p * units) with the smallest hash values."""
    bits = torch.zeros(units, dtype=torch.int32, device=device)
    bits[draw_kept(key, units - round(p * units), units, device)] = -1
    return bits


def draw_bits(value: Tensor, key: Key, p: float) -> Tensor:
    """Return the bits of a tensor's entries, drawn one by one, in the shape that this rank holds."""
    bits = torch.empty(value.numel(), dtype=bits_dtype(value), device=value.device)
    return cut(fill_bits(bits, key, p).view(value.shape), value)
