"""Masked and joint steps are timed as they run, and a warning says once where masked ones are not faster."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import mrreg
from mrreg.masks import clock as timing

JOINT = 3.0


class Clock:
    """What a loop spends is added by hand."""

    now = 1.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


class Loop:
    """Trains a model; backward passes of masked steps take `masked` seconds, and those of joint ones JOINT."""

    def __init__(self, clock: Clock, model: nn.Module, k: int = 5) -> None:
        self.clock, self.model, self.k = clock, model, k
        self.optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
        self.handle = mrreg.attach(self.optimizer, model)
        self.step = 0

    def run(self, steps: int, masked: float) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.model(torch.ones(2, 6)).square().mean()
            self.clock.now += masked if self.step % self.k < self.k - 1 else JOINT
            loss.backward()
            self.optimizer.step()
            self.step += 1

    def seconds(self) -> dict[str, float]:
        return {key[5:-8]: value for key, value in self.handle.state().items() if key.endswith("_seconds")}


def thin(k: int = 5, p: Any = 0.5) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    return mrreg.thin(model, p=p, k=k, example_inputs=torch.ones(2, 6))[0]


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", mrreg.NoEffectWarning)
        yield


def test_medians_of_the_newest_steps_of_both_kinds_are_told(clock: Clock) -> None:
    loop = Loop(clock, thin())
    loop.run(1, masked=1)  # whose beginning nobody has seen
    assert loop.seconds() == {}
    loop.run(2, masked=1)
    assert loop.seconds() == {"masked": 1}
    assert "joint steps take" not in str(loop.handle)
    loop.run(1, masked=50)  # an outlier
    loop.optimizer.zero_grad()
    loop.optimizer.step()  # without gradients it does not count
    loop.run(8, masked=1)
    assert loop.seconds() == {"masked": 1, "joint": JOINT}
    assert "    joint steps take 3 s, masked steps take 1 s" in str(loop.handle).splitlines()
    assert "second" not in str(loop.optimizer.state_dict())
    assert Loop(clock, copy.deepcopy(loop.model)).seconds() == {}
    loop.run(68, masked=0.5)
    loop.run(75, masked=2)
    assert loop.seconds()["masked"] == 2


def test_masked_steps_that_are_not_faster_are_told_once(clock: Clock) -> None:
    loop = Loop(clock, thin())
    loop.run(62, masked=JOINT)  # 49 masked steps
    with pytest.warns(
        mrreg.NoEffectWarning, match=r"(?s)masked steps take.*larger layers.*exclude.*nn\.Dropout"
    ) as told:
        loop.run(1, masked=JOINT)
    assert [each.filename for each in told] == [__file__]
    loop.run(100, masked=2 * JOINT)
    Loop(clock, thin()).run(100, masked=0.9 * JOINT)


def test_masks_that_leave_nothing_out_are_not_warned_of(clock: Clock) -> None:
    loop = Loop(clock, nn.Sequential(mrreg.MultirateMask(nn.Linear(6, 8), p=0.5, k=5), nn.Linear(8, 2)))
    loop.run(100, masked=2 * JOINT)
    assert loop.seconds() == {"masked": 2 * JOINT, "joint": JOINT}
    Loop(clock, thin(p={"inputs": 0.5})).run(100, masked=2 * JOINT)


@pytest.mark.parametrize(("p", "k"), [(0.0, 5), (0.5, 1)])
def test_masks_without_masked_steps_are_not_timed(clock: Clock, p: float, k: int) -> None:
    layer = mrreg.MultirateMask(nn.Linear(6, 8), p=p, k=k)
    loop = Loop(clock, nn.Sequential(layer, nn.Linear(8, 2)), k)
    loop.run(12, masked=1)
    assert loop.seconds() == {}


def test_steps_in_which_masks_disagree_count_as_neither(clock: Clock) -> None:
    first, second = (mrreg.MultirateMask(nn.Linear(6, 6), p=0.5, k=k) for k in (2, 3))
    loop = Loop(clock, nn.Sequential(first, second), k=6)
    loop.run(13, masked=1)
    timer = loop.handle._hooks[0].timer
    assert [list(each) for each in timer._seconds] == [[JOINT] * 2, [1] * 4]  # at 4, 6, 10, 12 both are masked
