"""The slow subset: a pure function of seed, index, cycle and flat index."""

import hashlib

import pytest
import torch

from mrreg.masks.sampling import BLOCK, HALF, draw_units, fill_bits, hashes

CPU = torch.device("cpu")


def _bits(key: tuple[int, int, int], p: float, count: int) -> torch.Tensor:
    return fill_bits(torch.empty(count, dtype=torch.int32), key, p)


def _sha(values: torch.Tensor) -> str:
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]


def test_values_never_change_between_versions() -> None:
    """A checkpoint's masks come back only if what is drawn stays as it is."""
    assert _sha(hashes(100_000, (3, 1, 4), CPU)) == "9daf6141a4d3cd03"
    assert _sha(_bits((3, 1, 4), 0.2, BLOCK + 100_000)) == "fb4c763bb01c8bc3"


def test_pairs_of_entries_are_independent_over_cycles() -> None:
    cycles, n, p = 1500, 200, 0.2
    slow = torch.stack([_bits((0, 0, cycle), p, n) for cycle in range(cycles)]) == 0
    r = torch.corrcoef(slow.double().T)[tuple(torch.triu_indices(n, n, 1))] * cycles**0.5
    assert r.abs().max() < 6
    assert abs(r.square().mean().item() - 1) < 0.05


@pytest.mark.parametrize("p", [0.0, 1e-12, 1e-3, 0.2, 0.5, 0.9, 1 - 1e-12, 1.0])
def test_share_of_slow_entries(p: float) -> None:
    n = 400_000
    bits = _bits((0, 0, 0), p, n)
    assert set(bits.unique().tolist()) <= {-1, 0}  # type: ignore[no-untyped-call]
    assert abs((bits == 0).float().mean().item() - p) < 4 * (p * (1 - p) / n) ** 0.5 + 1e-9


def test_draws_of_other_keys_and_neighbours_in_one_are_independent() -> None:
    n = 200_000
    bits = _bits((0, 0, 0), 0.5, n)
    others = [_bits(other, 0.5, n) for other in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (2**40, 0, 2**40)]]
    others += [bits.roll(lag) for lag in (1, 2, 3, 28, 784, 1024)]
    assert all(abs((bits == each).float().mean().item() - 0.5) < 4 * 0.5 / n**0.5 for each in others)


def test_hash_values_are_uniform() -> None:
    n = 1_000_000
    values = hashes(n, (0, 0, 0), CPU)
    counts = torch.bincount((values.long() >> 21) + 512, minlength=1024).double()
    chi2 = ((counts - n / 1024) ** 2 / (n / 1024)).sum().item()
    assert values.min() >= -HALF
    assert values.max() < HALF
    assert abs(chi2 - 1023) < 5 * (2 * 1023) ** 0.5


@pytest.mark.parametrize(("p", "units"), [(0.5, 7), (0.5, 8), (0.3, 10), (0.0, 5), (1.0, 5), (0.5, 1), (0.5, 0)])
def test_unit_masks_drop_exactly(p: float, units: int) -> None:
    for cycle in range(5):
        bits, values = draw_units((0, 0, cycle), p, units, CPU), hashes(units, (0, 0, cycle), CPU)
        assert (bits == 0).sum().item() == round(p * units)
        assert torch.equal(bits == 0, values.argsort().argsort() < round(p * units))  # the smallest


def test_the_global_random_state_is_neither_used_nor_moved() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = _bits((0, 0, 0), 0.5, 100)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(_bits((0, 0, 0), 0.5, 100), first)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64])
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_the_width_of_the_entries_does_not_matter(p: float, dtype: torch.dtype) -> None:
    narrow = fill_bits(torch.empty(1000, dtype=dtype), (0, 1, 2), p)
    assert torch.equal(narrow.int(), _bits((0, 1, 2), p, 1000))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_draws_what_the_cpu_draws() -> None:
    cpu = _bits((3, 4, 5), 0.3, BLOCK + 1000)
    gpu = fill_bits(torch.empty(BLOCK + 1000, dtype=torch.int32, device="cuda"), (3, 4, 5), 0.3)
    assert torch.equal(gpu.cpu(), cpu)
    assert torch.equal(
        draw_units((3, 4, 5), 0.3, 4000, torch.device("cuda")).cpu(), draw_units((3, 4, 5), 0.3, 4000, CPU)
    )
