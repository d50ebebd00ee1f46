"""The policy for BatchNorm statistics in saved states and in copies."""

import copy
import pickle
from typing import Any

import pytest
from helpers.batch_norm import END, POLICIES, batch, counts, network, same, slow_trunk, train
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import mrreg


@pytest.mark.parametrize("statistics", POLICIES)
@pytest.mark.parametrize("first", ["load", "batch_norm", "batch_norm with the default"])
def test_resume_at_every_step(statistics: str, first: str) -> None:
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
        if first != "load":
            mrreg.batch_norm(resumed, again, "every" if first == "batch_norm" else None)
        again.load_state_dict(weights)
        resumed.load_state_dict(rest)
        if first == "load":
            assert mrreg.batch_norm(resumed, again).statistics == statistics
        train(again, resumed, range(stop, END))
        assert same(model, again)
        assert resumed.param_groups == [
            mine | {"params": theirs["params"]}
            for mine, theirs in zip(optimizer.param_groups, resumed.param_groups, strict=True)
        ]


def test_the_last_word_counts() -> None:
    model = network()
    optimizer = slow_trunk(model)
    saved = optimizer.state_dict()
    handle = mrreg.batch_norm(optimizer, model, "sync")
    optimizer.load_state_dict(saved)  # without a policy
    assert [group["batch_norm"] for group in optimizer.param_groups] == ["sync"] * 2
    saved = optimizer.state_dict()
    handle.remove()
    optimizer.load_state_dict(saved)
    assert mrreg.batch_norm(optimizer, model, "never").statistics == "never"
    optimizer.load_state_dict(saved)
    train(model, optimizer, range(2))
    assert counts(model) == (1, 2)


@pytest.mark.parametrize(
    ("policies", "kind", "says"),
    [
        (["often", "often"], ValueError, r"batch_norm: statistics must be one of .*, got \['often', 'often'\]"),
        (["sync", "never"], ValueError, r"got \['sync', 'never'\]"),
        ([3, 3], TypeError, "got"),
    ],
)
def test_a_damaged_policy_is_refused_and_nothing_changes(policies: list[Any], kind: Any, says: str) -> None:
    model = network()
    optimizer = slow_trunk(model)
    handle = mrreg.batch_norm(optimizer, model, "sync")
    saved = copy.deepcopy(optimizer.state_dict())
    for group, policy in zip(saved["param_groups"], policies, strict=True):
        group["batch_norm"] = policy
    train(model, optimizer, [0])
    with pytest.raises(kind, match=says):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["clock"] == 1
    assert handle.statistics == "sync"


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


def test_a_copied_optimizer_brings_its_policy() -> None:
    model = network()
    optimizer = slow_trunk(model)
    mrreg.batch_norm(optimizer, model, "sync")
    train(model, optimizer, range(2))
    other, copied = copy.deepcopy((model, optimizer))
    assert mrreg.batch_norm(copied, other).statistics == "sync"
    train(model, optimizer, range(2, END))
    train(other, copied, range(2, END))
    assert same(model, other)


@pytest.mark.parametrize("flat", [False, True])
def test_the_policy_in_a_state_dict_by_names(flat: bool) -> None:
    """The form of torch's distributed checkpoints."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model = network()
    optimizer = slow_trunk(model)
    mrreg.batch_norm(optimizer, model, "sync")
    train(model, optimizer, range(2))
    saved = copy.deepcopy(get_state_dict(model, optimizer, options=options))
    again = network()
    resumed = slow_trunk(again)
    handle = mrreg.batch_norm(resumed, again)
    set_state_dict(again, resumed, model_state_dict=saved[0], optim_state_dict=saved[1], options=options)
    assert handle.statistics == "sync"
    train(model, optimizer, range(2, END))
    train(again, resumed, range(2, END))
    assert same(model, again)
