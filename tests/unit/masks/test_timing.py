"""Masked and joint steps are timed as they run, and a warning says once where masked ones are not faster."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

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
            self.clock.now += 100  # the data are loaded
            self.optimizer.zero_grad()
            loss = self.model(torch.ones(2, 6)).square().mean()
            self.clock.now += masked if self.step % self.k < self.k - 1 else JOINT
            loss.backward()
            self.optimizer.step()
            self.step += 1

    def seconds(self) -> dict[str, float]:
        return {key[5:-8]: value for key, value in self.handle.state().items() if key.endswith("_seconds")}


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def thin(k: int = 5, p: Any = 0.5) -> nn.Module:
    return mrreg.thin(plain(), p=p, k=k, example_inputs=torch.ones(2, 6))[0]


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", mrreg.NoEffectWarning)
        yield


def test_medians_of_both_kinds_are_told(clock: Clock) -> None:
    loop = Loop(clock, thin())
    assert loop.seconds() == {}
    loop.run(3, masked=1)
    assert loop.seconds() == {"masked": 1}
    assert "joint steps take" not in str(loop.handle)
    loop.run(1, masked=50)  # an outlier
    loop.run(8, masked=1)
    assert loop.seconds() == {"masked": 1, "joint": JOINT}
    assert "    joint steps take 3 s, masked ones 1 s" in str(loop.handle).splitlines()


def test_only_the_newest_steps_count(clock: Clock) -> None:
    loop = Loop(clock, thin())
    loop.run(75, masked=2)
    loop.run(75, masked=1)
    assert loop.seconds()["masked"] == 1


def test_masked_steps_that_are_not_faster_are_told_once(clock: Clock) -> None:
    loop = Loop(clock, thin())
    loop.run(61, masked=JOINT)  # 49 masked steps
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


def test_evaluation_between_steps_and_steps_that_do_not_count_are_not_timed(clock: Clock) -> None:
    loop = Loop(clock, thin())
    loop.run(1, masked=1)
    loop.model.eval()(torch.ones(2, 6))
    loop.model.train()
    with torch.no_grad():
        loop.model(torch.ones(2, 6))
    clock.now += 1000
    loop.run(1, masked=1)
    loop.optimizer.zero_grad()
    loop.model(torch.ones(2, 6))
    clock.now += 1000
    loop.optimizer.step()  # without gradients nothing moves
    loop.run(1, masked=1)
    assert list(loop.handle._hooks[0].timer._seconds[True]) == [1, 1, 1]


@pytest.mark.parametrize(("p", "k"), [(0.0, 5), (0.5, 1)])
def test_masks_without_masked_steps_are_not_timed(clock: Clock, p: float, k: int) -> None:
    layer = mrreg.MultirateMask(nn.Linear(6, 8), p=p, k=k)
    loop = Loop(clock, nn.Sequential(layer, nn.Linear(8, 2)), k)
    loop.run(12, masked=1)
    assert loop.seconds() == {}


def test_steps_in_which_masks_disagree_count_as_neither(clock: Clock) -> None:
    first, second = (mrreg.MultirateMask(nn.Linear(6, 6), p=0.5, k=k) for k in (2, 3))
    loop = Loop(clock, nn.Sequential(first, second), k=6)
    loop.run(12, masked=1)
    timer = loop.handle._hooks[0].timer
    assert [list(each) for each in timer._seconds] == [[JOINT] * 2, [1] * 4]  # steps 0, 2, ... where both are masked


def test_times_are_not_saved_or_copied(clock: Clock) -> None:
    loop = Loop(clock, thin())
    loop.run(6, masked=1)
    assert "second" not in str(loop.optimizer.state_dict()) + str(loop.model.state_dict())
    for twin in (copy.deepcopy(loop.model), pickle.loads(pickle.dumps(loop.model))):
        assert Loop(clock, twin).seconds() == {}
    loop.handle.remove()
    assert Loop(clock, loop.model).seconds() == {}


class Event:
    """A CUDA event that is done when the clock says so."""

    clock: Clock
    lag = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Any) -> None:
        self.at = self.clock.now

    def query(self) -> bool:
        return self.clock.now >= self.at + self.lag

    def elapsed_time(self, end: "Event") -> float:
        assert end.query(), "it would raise"
        return 1000 * (end.at - self.at)


def test_on_a_gpu_events_are_read_when_they_are_done(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    timer, cuda = timing.StepTimer(), torch.device("cuda", 0)
    Event.clock, Event.lag = clock, 5
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    module: Any = Mock()
    module.parameters = lambda: iter([Mock(device=cuda)])
    for spent, known in ((2, {}), (5, {"masked_seconds": 2})):  # the first is done in the second
        timer.begin(module)
        clock.now += spent
        timer.end({True})
        assert timer.medians() == known
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    timer.begin(module)
    timer.end({True})
    assert len(timer._open) == 1
