"""Kept entries of tensors: gathered, written back, differentiated, in any layout."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mrreg.masks.entries import KeptEntries, ReusableBuffer, gather

CPU = torch.device("cpu")
LAST = torch.channels_last
CASES: dict[str, tuple[Tensor, dict[int, list[int]]]] = {
    "rows": (torch.randn(5, 4), {0: [1, 3]}),
    "columns": (torch.randn(5, 4), {1: [0, 2, 3]}),
    "both": (torch.randn(5, 4), {0: [1, 3], 1: [2]}),
    "vector": (torch.randn(6), {0: [0, 5]}),
    "middle": (torch.randn(3, 4, 2), {1: [1, 2]}),
    "transposed": (torch.randn(4, 5).t(), {0: [1, 3]}),
    "convolution": (torch.randn(6, 4, 3, 3), {0: [1, 3], 1: [0, 2]}),
    "channels_last": (torch.randn(6, 4, 3, 3).to(memory_format=LAST), {0: [1, 3], 1: [0, 2]}),
    "channels_last_rows": (torch.randn(6, 4, 3, 3).to(memory_format=LAST), {0: [1, 3]}),
    "one_row": (torch.randn(1, 3), {1: [1]}),
    "one_column": (torch.randn(3, 1), {0: [1, 2]}),
    "nothing": (torch.randn(5, 4), {0: []}),
}
every_case = pytest.mark.parametrize("case", CASES)


def made(case: str) -> tuple[Tensor, KeptEntries, Tensor]:
    """A tensor, what is kept of it, and that by torch's own indexing."""
    value, kept = CASES[case]
    value, indices = value.double(), {dim: torch.tensor(found, dtype=torch.long) for dim, found in kept.items()}
    small = value
    for dim, along in indices.items():
        small = small.index_select(dim, along)
    return value, KeptEntries(value, indices, CPU), small


@every_case
def test_takes_what_indexing_takes(case: str) -> None:
    value, entries, small = made(case)
    assert entries.shape == small.shape
    found = entries.take(value)
    assert torch.equal(found, small)
    assert entries.take(2 * value, out=found) is found
    assert torch.equal(found, 2 * small)


@every_case
def test_puts_kept_entries_and_leaves_the_others(case: str) -> None:
    value, entries, small = made(case)
    whole = value.clone()
    entries.put(3 * small, whole)
    assert torch.equal(entries.take(whole), 3 * small)
    entries.put(small, whole)
    assert torch.equal(whole, value)
    spread = entries.spread(small)
    assert torch.equal(entries.take(spread), small)
    assert torch.equal(spread != 0, _positions(entries, value))


def _positions(entries: KeptEntries, value: Tensor) -> Tensor:
    found = torch.zeros_like(value)
    entries.put(torch.ones(entries.shape, dtype=value.dtype), found)
    return found != 0


def test_takes_from_a_tensor_without_memory_of_its_own() -> None:
    value = torch.randn(5).expand(3, 5)
    entries = KeptEntries(value, {0: torch.tensor([1])}, CPU)
    assert torch.equal(entries.take(value), value[1:2])


def test_tensors_of_another_layout() -> None:
    value, entries, small = made("channels_last")
    other = value.contiguous()
    assert torch.equal(entries.take(other), small)
    entries.put(3 * small, other)
    entries.put(3 * small, value := value.clone())
    assert torch.equal(other, value)


@every_case
@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")  # torch's own, of its forward derivatives
def test_derivatives(case: str) -> None:
    value, entries, small = made(case)
    if small.numel() == 0:
        return

    def scaled(x: Tensor) -> Tensor:
        return gather(x, entries, 2.0, ReusableBuffer()) ** 2

    value.requires_grad_()
    assert torch.autograd.gradcheck(scaled, value, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(scaled, value)
    slope: Any = torch.func.grad(lambda x: scaled(x).sum())(value.detach())
    assert torch.equal(slope, torch.autograd.grad(scaled(value).sum(), value)[0])
    found: Any = torch.func.jvp(scaled, (value.detach(),), (torch.ones_like(value),))[1]
    assert torch.equal(found, 8 * small.detach())


def test_gradient_memory_is_used_again_once_it_is_free() -> None:
    value = torch.randn(5, 4, requires_grad=True)
    entries, memory = KeptEntries(value, {0: torch.tensor([1, 3])}, CPU), ReusableBuffer()
    gather(value, entries, 1.0, memory).sum().backward()  # type: ignore[no-untyped-call]
    first: Any = value.grad
    assert torch.equal(first, entries.spread(torch.ones(2, 4)))
    gather(value, entries, 1.0, memory).sum().backward()  # type: ignore[no-untyped-call] # added to what is in use
    assert torch.equal(first, 2 * entries.spread(torch.ones(2, 4)))
    first.fill_(torch.nan)
    del first
    value.grad = None
    gather(value, entries, 1.0, memory).sum().backward()  # type: ignore[no-untyped-call]
    again: Any = value.grad
    assert torch.equal(again, entries.spread(torch.ones(2, 4)))
    assert again.data_ptr() == memory.address


def test_nan_at_absent_entries_is_never_read() -> None:
    value = torch.full((4, 3), torch.nan)
    value[1] = 1.0
    value.requires_grad_()
    entries = KeptEntries(value, {0: torch.tensor([1])}, CPU)
    small = gather(value, entries, 2.0, ReusableBuffer())
    assert torch.equal(small, torch.full((1, 3), 2.0))
    small.sum().backward()  # type: ignore[no-untyped-call]
    assert value.grad is not None
    assert torch.equal(value.grad, entries.spread(torch.full((1, 3), 2.0)))
