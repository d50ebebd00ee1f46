"""What a handle says about its masks."""

import copy
from typing import Any

import torch
from torch import nn

import mrreg


def net(*ks: int) -> nn.Module:
    first, second = ks
    return nn.Sequential(
        mrreg.MultirateMask(nn.Linear(20, 30), p=0.2, k=first),
        nn.ReLU(),
        mrreg.MultirateMask(nn.Linear(30, 20), p=0.5, k=second, structure="input"),
    )


def train(model: nn.Module, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        model(torch.randn(4, 20)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_handle_says_where_the_cycle_is_and_what_is_present() -> None:
    model = net(5, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = mrreg.attach(optimizer, model)
    train(model, optimizer, 6)
    assert [line for line in str(handle).splitlines() if "joint steps take" not in line] == [  # test_timing.py
        "Attachment (",
        "  SGD, 6 steps done: cycle 2, step 2 of 5, 65% of 1,200 masked entries present, "
        "the joint step comes after 3 more",
        "    boost 5: k, for updates are multiples of the gradient (SGD without momentum)",
        "    0.weight: 480 of 600 entries on masked steps",
        "    2: 15 of 30 units (input) on masked steps",
        ")",
    ]
    assert {key: value for key, value in handle.state().items() if "seconds" not in key} == {
        "mask/step": 6,
        "mask/cycle": 1,
        "mask/phase": 1,
        "mask/k": 5,
        "mask/steps_to_joint": 3,
        "mask/present": 0.65,
        "mask/boost": 5,
    }
    train(model, optimizer, 3)
    assert "100% of 1,200 masked entries present, the joint step comes next" in str(handle)
    assert handle.state()["mask/present"] == 1


def test_masks_are_listed_by_their_optimizer() -> None:
    model: Any = net(5, 5)
    optimizers = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.AdamW(model[2].parameters())
    handle = mrreg.attach(optimizers, model)
    train(model, optimizers[1], 2)
    lines = str(handle).splitlines()
    assert lines[1].startswith("  SGD, 0 steps done: cycle 1, step 1 of 5, 80% of 600 masked")
    assert lines[3].startswith("    0.weight:")
    assert lines[4].startswith("  AdamW, 2 steps done: cycle 1, step 3 of 5, 50% of 600 masked")
    assert lines[6].startswith("    2:")
    assert (handle.state()["mask0/step"], handle.state()["mask1/step"]) == (0, 2)


def test_cycles_of_two_lengths_have_numbers_of_their_own() -> None:
    model = net(2, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = mrreg.attach(optimizer, model)
    train(model, optimizer, 3)
    state = handle.state()
    assert (state["mask0/phase"], state["mask1/phase"]) == (1, 3)
    assert (state["mask0/present"], state["mask1/present"]) == (1, 0.5)


def test_of_a_thin_network_the_groups_are_named_and_the_share_of_flops_is_known() -> None:
    plain = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 20))
    model, report = mrreg.thin(plain, p=0.25, k=5, example_inputs=torch.randn(2, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = mrreg.attach(optimizer, model)
    assert "75% of 656 masked entries present" in str(handle)
    assert str(handle).splitlines()[3] == "    0: 12 of 16 units (hidden) on masked steps"
    shares = []
    for _ in range(5):
        shares.append(handle.state()["mask/flops"])
        train(model, optimizer, 1)
    assert shares == [report.masked_share] * 4 + [1]
    other = copy.deepcopy(model)
    its = torch.optim.SGD(other.parameters(), lr=0.1)
    assert mrreg.attach(its, other).state()["mask/flops"] == report.masked_share
    mrreg.unwrap(model)
    assert handle.state()["mask/present"] == 1
    assert str(handle) == "Attachment (drives nothing)"
