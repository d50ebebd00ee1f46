"""Whatever other code does between steps, a training is the one that nobody disturbs."""

from collections.abc import Callable
from typing import Any

from helpers.flags import LOOKERS, LOOPS, K, accumulated, flags
from helpers.optimizers import Net, loss, network, same, sgd
from hypothesis import given
from hypothesis import strategies as st

Act = Callable[[Net, Any], None]
Loop = Callable[[Net, Any, int], None]


@given(st.lists(st.tuples(st.lists(st.sampled_from(LOOKERS), max_size=3), st.sampled_from(LOOPS)), max_size=6))
def test_any_sequence_of_events(steps: list[tuple[list[Act], Loop]]) -> None:
    net, twin = network(), network()
    optimizer, other = sgd(net, k=K), sgd(twin, k=K)
    for t, (acts, loop) in enumerate(steps):
        for act in acts:
            act(net, optimizer)
        optimizer.zero_grad()  # some loops leave their gradients to the next
        loop(net, optimizer, t)
        assert all(flags(net))
        parts = 2 if loop is accumulated else 1
        for _ in range(parts):
            (loss(twin, t) / parts).backward()  # type: ignore[no-untyped-call]
        other.step()
        other.zero_grad()
        assert same(net, twin)
