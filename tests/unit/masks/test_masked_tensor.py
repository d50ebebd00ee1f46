"""Memory that is handed out again: only when nobody else can still see it."""

from collections.abc import Callable
from threading import Thread

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mrreg.masks.entries import ReusableBuffer

VALUE = torch.zeros(3, 4)


def test_the_same_memory_comes_again_once_it_is_let_go() -> None:
    work = ReusableBuffer()
    first = work.empty_like(VALUE)
    address = first.data_ptr()
    assert work.empty_like(VALUE).data_ptr() != address
    del first
    again = work.empty_like(VALUE)
    address = again.data_ptr()
    del again
    assert work.empty_like(VALUE).data_ptr() == address


HOLDERS: dict[str, Callable[[Tensor], object]] = {
    "view": lambda t: t[0],
    "NumPy": lambda t: t.numpy(),
    "storage": lambda t: t.untyped_storage(),
    "alias": lambda t: t.data,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_holds_is_left_alone(holder: str) -> None:
    work = ReusableBuffer()
    held = HOLDERS[holder](work.empty_like(VALUE).fill_(1))
    other = work.empty_like(VALUE).fill_(2)
    assert bytes(held.untyped_storage() if isinstance(held, Tensor) else held) == bytes(torch.ones(12).numpy())  # type: ignore[call-overload]
    assert other.eq(2).all()


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "resized": lambda t: t.untyped_storage().resize_(0),
    "shared with other processes": lambda t: t.share_memory_(),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("change", CHANGES)
def test_memory_that_has_moved_is_given_up(change: str) -> None:
    work = ReusableBuffer()
    first = work.empty_like(VALUE)
    CHANGES[change](first)
    address = first.data_ptr()
    del first
    second = work.empty_like(VALUE).fill_(2)
    assert second.data_ptr() != address
    assert second.eq(2).all()
    assert not second.untyped_storage().is_shared()


def test_other_threads_get_memory_of_their_own() -> None:
    work = ReusableBuffer()
    address = work.empty_like(VALUE).data_ptr()
    seen: list[Tensor] = []
    thread = Thread(target=lambda: seen.extend(work.empty_like(VALUE) for _ in range(2)))
    thread.start()
    thread.join()
    assert len({address, *(t.data_ptr() for t in seen)}) == 3
    assert work.empty_like(VALUE).data_ptr() == address


def test_a_dry_run_leaves_nothing_behind() -> None:
    work = ReusableBuffer()
    with FakeTensorMode():
        work.empty_like(torch.zeros(3, 4))
    assert type(work.empty_like(VALUE)) is Tensor


def test_a_subclass_gets_memory_of_its_own_kind() -> None:
    class Labelled(Tensor):
        """Has the same shape, strides and type as a plain tensor."""

    work = ReusableBuffer()
    address = work.empty_like(VALUE).data_ptr()
    other = work.empty_like(VALUE.as_subclass(Labelled))
    assert type(other) is Labelled
    assert other.data_ptr() != address
