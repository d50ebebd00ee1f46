"""A hash of whole numbers, for streams of random numbers that depend on nothing but their key."""

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the increment of SplitMix64


def splitmix64(*words: int) -> int:
    """Hash whole numbers of any size to 64 bits: SplitMix64's finalizer, once per word.

    Example:
        >>> from mrreg.hashing import splitmix64
        >>> hex(splitmix64(0))
        '0xe220a8397b1dcdaf'

    References:
        Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    mixed = 0
    for word in words:
        mixed = (mixed + word + GOLDEN) & WORD
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
        mixed ^= mixed >> 31
    return mixed
