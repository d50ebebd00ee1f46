"""The slow subset: a pure function of seed, index, cycle and flat index."""

import hashlib

import pytest
import torch

from mrreg import draw
from mrreg.draw import BLOCK, CHUNK, HALF, draw_units, fill_bits, fill_hashes

CPU = torch.device("cpu")


def _bits(key: tuple[int, int, int], p: float, count: int, start: int = 0) -> torch.Tensor:
    return fill_bits(torch.empty(count, dtype=torch.int32), key, p, start)


def test_values_never_change_between_versions() -> None:
    """A checkpoint's masks come back only if the hash stays as it is."""
    values = fill_hashes(torch.empty(100_000, dtype=torch.int32), (3, 1, 4))
    assert hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16] == "9daf6141a4d3cd03"


def test_a_shard_computes_its_own_part() -> None:
    whole = _bits((0, 1, 2), 0.3, 3 * CHUNK + 17)
    for start, stop in [(0, 5), (CHUNK - 3, CHUNK + 9), (2 * CHUNK, 3 * CHUNK + 17)]:
        assert torch.equal(_bits((0, 1, 2), 0.3, stop - start, start), whole[start:stop])


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _bits((5, 0, 9), 0.5, CHUNK + 1)
    monkeypatch.setattr(draw, "CHUNK", BLOCK)
    assert torch.equal(_bits((5, 0, 9), 0.5, CHUNK + 1), whole)


def test_flat_indices_beyond_one_block_have_their_own_values() -> None:
    first, second = (_bits((0, 0, 0), 0.5, 1000, start) for start in (0, BLOCK))
    assert 0.4 < (first == second).float().mean() < 0.6
    across = _bits((0, 0, 0), 0.5, 1000, BLOCK - 500)
    assert torch.equal(across[500:], second[:500])


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.2, 0.5, 0.9, 1.0])
def test_share_of_slow_entries(p: float) -> None:
    n = 400_000
    bits = _bits((0, 0, 0), p, n)
    assert set(bits.unique().tolist()) <= {-1, 0}  # type: ignore[no-untyped-call]
    assert abs((bits == 0).float().mean().item() - p) < 4 * (p * (1 - p) / n) ** 0.5 + 1e-9


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (2**40, 0, 0), (0, 0, 2**40)])
def test_each_word_of_the_key_gives_an_independent_draw(other: tuple[int, int, int]) -> None:
    n = 200_000
    agree = (_bits((0, 0, 0), 0.5, n) == _bits(other, 0.5, n)).float().mean().item()
    assert abs(agree - 0.5) < 4 * 0.5 / n**0.5


@pytest.mark.parametrize("lag", [1, 2, 3, 28, 784, 1024])
def test_neighbours_are_independent(lag: int) -> None:
    bits = _bits((0, 0, 0), 0.5, 400_000)
    agree = (bits[lag:] == bits[:-lag]).float().mean().item()
    assert abs(agree - 0.5) < 4 * 0.5 / 400_000**0.5


def test_hash_values_are_uniform() -> None:
    n = 1_000_000
    values = fill_hashes(torch.empty(n, dtype=torch.int32), (0, 0, 0))
    counts = torch.bincount((values.long() >> 21) + 512, minlength=1024).double()
    chi2 = ((counts - n / 1024) ** 2 / (n / 1024)).sum().item()
    assert values.min() >= -HALF
    assert values.max() < HALF
    assert abs(chi2 - 1023) < 5 * (2 * 1023) ** 0.5


@pytest.mark.parametrize(("p", "units"), [(0.5, 7), (0.5, 8), (0.3, 10), (0.0, 5), (1.0, 5), (0.5, 1), (0.5, 0)])
def test_unit_masks_drop_exactly(p: float, units: int) -> None:
    for cycle in range(5):
        bits = draw_units((0, 0, cycle), p, units, CPU)
        assert (bits == 0).sum().item() == round(p * units)


def test_unit_masks_drop_the_smallest_hash_values() -> None:
    values = fill_hashes(torch.empty(50, dtype=torch.int32), (1, 2, 3))
    bits = draw_units((1, 2, 3), 0.4, 50, CPU)
    assert values[bits == 0].max() < values[bits == -1].min()


def test_the_global_random_state_is_neither_used_nor_moved() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = _bits((0, 0, 0), 0.5, 100)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(_bits((0, 0, 0), 0.5, 100), first)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_draws_what_the_cpu_draws() -> None:
    for start in (0, BLOCK - 1000):
        cpu = _bits((3, 4, 5), 0.3, 300_000, start)
        gpu = fill_bits(torch.empty(300_000, dtype=torch.int32, device="cuda"), (3, 4, 5), 0.3, start)
        assert torch.equal(gpu.cpu(), cpu)
    assert torch.equal(
        draw_units((3, 4, 5), 0.3, 4000, torch.device("cuda")).cpu(), draw_units((3, 4, 5), 0.3, 4000, CPU)
    )
