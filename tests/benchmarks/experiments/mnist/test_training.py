"""The MNIST benchmark's training loop: the plain loop for one seed, and many seeds at once."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mrreg
from benchmarks.data.mnist import CLASSES, Digits
from benchmarks.experiments.mnist.models import DropWeights, Method, network
from benchmarks.experiments.mnist.training import Order, Setting, optimizer_of, train, train_epoch

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
    order = Order(digits.examples(seed), seed)
    torch.manual_seed(seed)
    accuracy = []
    for _ in range(setting.epochs):
        model.train()
        for index in torch.split(order.draw(), setting.batch):
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

    ours = network(method, [7], SIZES, stacked=stacked)
    optimizer, _ = optimizer_of(ours, method, setting, 7)
    order = Order(digits.examples(7), 7)
    torch.manual_seed(7)
    for _ in range(setting.epochs):
        index = order.draw()
        train_epoch(ours, optimizer, digits.x, digits.y, index.unsqueeze(0) if stacked else index, setting.batch)
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.reshape(theirs.shape), theirs, rtol=1e-12, atol=1e-12)


def test_stacked_seeds_do_not_touch_each_other(digits: Digits) -> None:
    setting = Setting(epochs=2, batch=16, width=SIZES[1], momentum=0.9, stacked=True)
    together = train(Method(), setting, digits, [3, 4, 5])
    for seed, curves in zip([3, 4, 5], together, strict=True):
        assert curves.accuracy == pytest.approx(plain_loop(Method(), digits, seed, setting)[1])


@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_stacked_seeds_leave_out_different_parts(method: Method, digits: Digits) -> None:
    model = network(method, [3, 3], SIZES, stacked=True)
    optimizer, _ = optimizer_of(model, method, Setting(1), 0)
    index = torch.arange(16).expand(2, 16)
    train_epoch(model, optimizer, digits.x, digits.y, index, 16)
    assert all(not torch.equal(p[0], p[1]) for p in model.parameters() if p.dim() > 2)


def test_only_asked_epochs_are_evaluated(digits: Digits) -> None:
    setting = Setting(epochs=5, batch=16, width=4)
    everything = train(Method(), setting, digits, [0])[0]
    some = train(Method(), setting, digits, [0], evaluate={2, 5})[0]
    assert some.epoch == [2, 5]
    assert some.accuracy == [everything.accuracy[1], everything.accuracy[4]]
    assert len(some.seconds) == len(some.as_left) == 2
    assert all(a < b for a, b in pairwise(everything.seconds))


def test_each_seed_trains_on_its_own_draw(digits: Digits) -> None:
    few = Digits(digits.x, digits.y, digits.test_x, digits.test_y, draw=16)
    order = Order(few.examples(1), 1)
    first, second = order.draw(), order.draw()
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(few.examples(1).tolist())
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("restart", [False, True])
def test_as_left_has_the_mask_on_where_the_next_step_has(steps: int, restart: bool, digits: Digits) -> None:
    """With k = 3 all weights are there before the third step of a cycle only."""
    setting = Setting(epochs=6, batch=-(-42 // steps), width=SIZES[1], restart=restart)
    curves = train(Method("masks", (0.5, 0.5), k=3), setting, digits, [0])[0]
    for epoch, full, left in zip(curves.epoch, curves.accuracy, curves.as_left, strict=True):
        done = steps if restart else steps * epoch
        if done % 3 == 2:
            assert left == full
    on = [full != left for full, left in zip(curves.accuracy, curves.as_left, strict=True)]
    assert any(on) == any((steps if restart else steps * epoch) % 3 != 2 for epoch in curves.epoch)


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
