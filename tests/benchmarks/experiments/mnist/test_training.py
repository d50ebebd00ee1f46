"""The MNIST benchmark's training loop: the plain loop for one seed, and many seeds at once."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mrreg
from benchmarks.core.training import Curve, Plan, fit
from benchmarks.data.mnist import CLASSES, Digits
from benchmarks.experiments.mnist.training import (
    AS_LEFT,
    ORDER_STREAM,
    DropWeights,
    Method,
    Setting,
    Training,
    batches_of,
    begin,
    network,
)

SIZES = (6, 5, CLASSES)
P = (0.3, 0.5)
EPOCHS = 3
METHODS = [
    Method(),
    Method("dropout", P),
    Method("DropConnect", P),
    Method("every step", P),
    Method("masks", P, k=3),
    Method("masks", P, k=3, boost=2, rescale=True),
]


@pytest.fixture
def digits() -> Digits:
    """42 images, so that the last batch of 16 is short."""
    x, y = torch.randn(42, 6).double(), torch.arange(42) % CLASSES
    return Digits(x, y, torch.randn(30, 6).double(), torch.arange(30) % CLASSES)


@pytest.fixture(autouse=True)
def _double() -> object:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def train(loop: Training, steps: int, epochs: int, *splits: str) -> Curve:
    """The numbers after every epoch of so many steps."""
    return fit(loop, Plan([steps * epoch for epoch in range(1, epochs + 1)], splits), torch.device("cpu"))


def plain_loop(method: Method, digits: Digits, seed: int, setting: Setting) -> tuple[nn.Module, list[float]]:
    """What anyone would write: nn.Linear layers, one seed, one batch after the other."""
    model = network(method, [seed], SIZES, stacked=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.lr, momentum=setting.momentum)
    if method.kind == "masks":
        mrreg.attach(optimizer, model, seed=seed)
    examples, generator = digits.examples(seed), torch.Generator().manual_seed(ORDER_STREAM + seed)
    torch.manual_seed(seed)
    accuracy = []
    for _ in range(EPOCHS):
        model.train()
        for index in torch.split(examples[torch.randperm(len(examples), generator=generator)], setting.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(digits.x[index]), digits.y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        model.eval()
        hits = model(digits.test_x).argmax(1) == digits.test_y
        accuracy.append(100 * hits.double().mean().item())
    return model, accuracy


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_one_seed_is_the_plain_loop(method: Method, stacked: bool, digits: Digits) -> None:
    setting = Setting(batch=16, width=SIZES[1], momentum=0.9, stacked=stacked)
    model, accuracy = plain_loop(method, digits, 7, setting)
    loop = begin(method, setting, digits, [7])
    found = train(loop, 3, EPOCHS, "test").values["test"].values()
    assert list(found) == [pytest.approx([each] if stacked else each) for each in accuracy]
    for mine, theirs in zip(loop.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.reshape(theirs.shape), theirs, rtol=1e-12, atol=1e-12)


def test_stacked_seeds_do_not_touch_each_other(digits: Digits) -> None:
    setting = Setting(batch=16, width=SIZES[1], momentum=0.9, stacked=True)
    together = train(begin(Method(), setting, digits, [3, 4, 5]), 3, EPOCHS, "test")
    for place, seed in enumerate([3, 4, 5]):
        found = list(together.share(place, 3).values["test"].values())
        assert found == pytest.approx(plain_loop(Method(), digits, seed, setting)[1])


@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_stacked_seeds_leave_out_different_parts(method: Method, digits: Digits) -> None:
    few = replace(digits, draw=16)
    loop = begin(method, Setting(batch=16, width=SIZES[1], stacked=True), few, [3, 3])
    loop.step()
    assert all(not torch.equal(p[0], p[1]) for p in loop.model.parameters() if p.dim() > 2)


def test_each_seed_trains_on_its_own_draw(digits: Digits) -> None:
    few = replace(digits, draw=16)
    batches = batches_of(few, [1], 16, stacked=False)
    (x1, y1), (x2, y2) = next(batches), next(batches)
    assert sorted(y1.tolist()) == sorted(y2.tolist()) == sorted(few.y[few.examples(1)].tolist())
    assert not torch.equal(x1, x2)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("restart", [False, True])
def test_as_left_has_the_mask_on_where_the_next_step_has(steps: int, restart: bool, digits: Digits) -> None:
    """With k = 3 all weights are there before the third step of a cycle only."""
    setting = Setting(batch=-(-42 // steps), width=SIZES[1], restart=restart)
    loop = begin(Method("masks", (0.5, 0.5), k=3), setting, digits, [0])
    found = train(loop, steps, 6, "test", AS_LEFT).values
    on = [full != left for full, left in zip(found["test"].values(), found[AS_LEFT].values(), strict=True)]
    position = [steps if restart else steps * epoch for epoch in range(1, 7)]
    assert not any(masked for masked, done in zip(on, position, strict=True) if done % 3 == 2)
    assert any(on) == any(done % 3 != 2 for done in position)


@pytest.mark.parametrize("stop", [4, 6, 7])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_training_cut_short_goes_on_to_the_bit(stop: int, stacked: bool, digits: Digits) -> None:
    def started() -> Training:
        setting = Setting(batch=16, width=SIZES[1], momentum=0.9, restart=True, stacked=stacked)
        return begin(Method("masks", P, k=4), setting, digits, [1, 2] if stacked else [1])

    whole, first, second = started(), started(), started()
    for step in range(12):
        whole.step()
        if step < stop:
            first.step()
    second.load_state_dict(deepcopy(first.state_dict()))
    for _ in range(stop, 12):
        second.step()
    for mine, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("rescale", [False, True])
def test_weights_are_dropped_in_training_only(rescale: bool) -> None:
    layer = nn.Linear(40, 50, bias=False)
    module, eye = DropWeights(layer, 0.25, rescale=rescale), torch.eye(40)
    shown = module(eye).mT
    kept = shown != 0
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.05)
    torch.testing.assert_close(shown[kept], layer.weight[kept] / (0.75 if rescale else 1))
    assert not torch.equal(module(eye) != 0, module(eye) != 0)
    assert torch.equal(module.eval()(eye).mT, layer.weight)
