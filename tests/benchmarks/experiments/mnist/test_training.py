"""The MNIST benchmark's training loop: the plain loop for one seed, and many seeds at once."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mrreg
from benchmarks.data.mnist import CLASSES, Digits
from benchmarks.experiments.mnist.models import DropWeights, Method, network
from benchmarks.experiments.mnist.training import ORDER_STREAM, Setting, batches_of, begin, train

SIZES = (6, 5, CLASSES)
P = (0.3, 0.5)
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


def plain_loop(method: Method, digits: Digits, seed: int, setting: Setting) -> tuple[nn.Module, list[float]]:
    """What anyone would write: nn.Linear layers, one seed, one batch after the other."""
    model = network(method, [seed], SIZES, stacked=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.lr, momentum=setting.momentum)
    if method.kind == "masks":
        mrreg.attach(optimizer, model, seed=seed)
    examples, generator = digits.examples(seed), torch.Generator().manual_seed(ORDER_STREAM + seed)
    torch.manual_seed(seed)
    accuracy = []
    for _ in range(setting.epochs):
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
    setting = Setting(epochs=3, batch=16, width=SIZES[1], momentum=0.9, stacked=stacked)
    model, accuracy = plain_loop(method, digits, 7, setting)
    assert train(method, setting, digits, [7])[0].accuracy == pytest.approx(accuracy)

    loop = begin(method, setting, digits, [7])
    if method.kind == "masks":
        mrreg.attach(loop.optimizer, loop.model, seed=7)
    for _ in range(setting.epochs * 3):
        loop.step()
    for mine, theirs in zip(loop.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.reshape(theirs.shape), theirs, rtol=1e-12, atol=1e-12)


def test_stacked_seeds_do_not_touch_each_other(digits: Digits) -> None:
    setting = Setting(epochs=2, batch=16, width=SIZES[1], momentum=0.9, stacked=True)
    together = train(Method(), setting, digits, [3, 4, 5])
    for seed, curves in zip([3, 4, 5], together, strict=True):
        assert curves.accuracy == pytest.approx(plain_loop(Method(), digits, seed, setting)[1])


@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_stacked_seeds_leave_out_different_parts(method: Method, digits: Digits) -> None:
    few = replace(digits, draw=16)
    loop = begin(method, Setting(1, batch=16, width=SIZES[1], stacked=True), few, [3, 3])
    if method.kind == "masks":
        mrreg.attach(loop.optimizer, loop.model, seed=0)
    loop.step()
    assert all(not torch.equal(p[0], p[1]) for p in loop.model.parameters() if p.dim() > 2)


def test_seconds_grow(digits: Digits) -> None:
    (curves,) = train(Method(), Setting(epochs=5, batch=16, width=4), digits, [0])
    assert len(curves.seconds) == len(curves.as_left) == len(curves.accuracy) == 5
    assert all(a < b for a, b in pairwise(curves.seconds))


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
    setting = Setting(epochs=6, batch=-(-42 // steps), width=SIZES[1], restart=restart)
    curves = train(Method("masks", (0.5, 0.5), k=3), setting, digits, [0])[0]
    for epoch, (full, left) in enumerate(zip(curves.accuracy, curves.as_left, strict=True), 1):
        done = steps if restart else steps * epoch
        if done % 3 == 2:
            assert left == full
    on = [full != left for full, left in zip(curves.accuracy, curves.as_left, strict=True)]
    assert any(on) == any((steps if restart else steps * epoch) % 3 != 2 for epoch in range(1, 7))


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
