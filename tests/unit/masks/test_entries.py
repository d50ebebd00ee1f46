"""Kept entries of tensors, in any layout; and memory that is handed out again only when nobody else can see it."""

from collections.abc import Callable
from threading import Thread
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
    "transposed": (torch.randn(4, 5).t(), {0: [1, 3]}),
    "convolution": (torch.randn(4, 3, 2, 2), {0: [1, 3], 1: [0, 2]}),
    "channels_last": (torch.randn(4, 3, 2, 2).to(memory_format=LAST), {0: [1, 3], 1: [0, 2]}),
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
def test_takes_what_indexing_takes_puts_it_back_and_leaves_the_others(case: str) -> None:
    value, entries, small = made(case)
    assert entries.shape == small.shape
    found = entries.take(value)
    assert torch.equal(found, small)
    assert entries.take(2 * value, out=found) is found
    assert torch.equal(found, 2 * small)
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


VALUE = torch.zeros(3, 4)


def test_the_same_memory_comes_again_once_it_is_let_go() -> None:
    memory = ReusableBuffer()
    first = memory.empty_like(VALUE)
    address = first.data_ptr()
    assert memory.empty_like(VALUE).data_ptr() != address
    del first
    again = memory.empty_like(VALUE)
    address = again.data_ptr()
    del again
    assert memory.empty_like(VALUE).data_ptr() == address


HOLDERS: list[Callable[[Tensor], object]] = [
    lambda t: t[0],
    lambda t: t.numpy(),
    lambda t: t.untyped_storage(),
    lambda t: t.data,
]


@pytest.mark.parametrize("hold", HOLDERS)
def test_memory_that_somebody_holds_is_left_alone(hold: Callable[[Tensor], object]) -> None:
    memory = ReusableBuffer()
    held: Any = hold(memory.empty_like(VALUE).fill_(1))
    other = memory.empty_like(VALUE).fill_(2)
    assert bytes(held.untyped_storage() if isinstance(held, Tensor) else held) == bytes(torch.ones(12).numpy())
    assert other.eq(2).all()


@pytest.mark.parametrize("move", [lambda t: t.untyped_storage().resize_(0), lambda t: t.share_memory_()])
def test_memory_that_is_resized_or_shared_with_processes_is_given_up(move: Callable[[Tensor], object]) -> None:
    memory = ReusableBuffer()
    first = memory.empty_like(VALUE)
    move(first)
    address = first.data_ptr()
    del first
    second = memory.empty_like(VALUE).fill_(2)
    assert second.data_ptr() != address
    assert second.eq(2).all()
    assert not second.untyped_storage().is_shared()


def test_other_threads_get_memory_of_their_own() -> None:
    memory = ReusableBuffer()
    address = memory.empty_like(VALUE).data_ptr()
    seen: list[Tensor] = []
    thread = Thread(target=lambda: seen.extend(memory.empty_like(VALUE) for _ in range(2)))
    thread.start()
    thread.join()
    assert len({address, *(t.data_ptr() for t in seen)}) == 3
    assert memory.empty_like(VALUE).data_ptr() == address


def test_a_subclass_gets_memory_of_its_own_kind() -> None:
    class Labelled(Tensor):
        """Has the same shape, strides and type as a plain tensor."""

    memory = ReusableBuffer()
    address = memory.empty_like(VALUE).data_ptr()
    other = memory.empty_like(VALUE.as_subclass(Labelled))
    assert type(other) is Labelled
    assert other.data_ptr() != address
