"""The policy for BatchNorm statistics in saved states and in copies."""

import copy
import pickle
from typing import Any

import pytest
from helpers.batch_norm import END, POLICIES, batch, counts, network, same, slow_trunk, train

import mrreg


@pytest.mark.parametrize("statistics", POLICIES)
@pytest.mark.parametrize("loads_first", [True, False])
def test_resume_at_every_step(statistics: str, loads_first: bool) -> None:
    model = network()
    optimizer = slow_trunk(model)
    mrreg.batch_norm(optimizer, model, statistics)
    saved = []
    for t in range(END):
        saved.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
        train(model, optimizer, [t])
    for stop, (weights, rest) in enumerate(saved):
        again = network()
        resumed = slow_trunk(again)
        again.load_state_dict(weights)
        if loads_first:
            resumed.load_state_dict(rest)
        mrreg.batch_norm(resumed, again, statistics)
        if not loads_first:
            resumed.load_state_dict(rest)
        train(again, resumed, range(stop, END))
        assert same(model, again)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("statistics", POLICIES)
def test_a_copy_of_the_model_is_as_in_torch(copied: Any, statistics: str) -> None:
    model = network()
    optimizer = slow_trunk(model)
    handle = mrreg.batch_norm(optimizer, model, statistics)
    train(model, optimizer, range(2))  # a fast step is next
    other = copied(model)
    before = counts(other)[0]
    other(batch(0))
    assert counts(other)[0] == before + 1
    kept = counts(model)[0]
    model(batch(0))
    assert counts(model)[0] == kept + (statistics == "every")
    again = slow_trunk(other)
    mrreg.batch_norm(again, other, "never")
    other(batch(0))
    assert counts(other)[0] == before + 1
    handle.remove()
