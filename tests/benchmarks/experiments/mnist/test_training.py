"""The MNIST benchmark's training is the plain loop, and weights are dropped as its methods say."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mrreg
from benchmarks.core.training import Plan, fit
from benchmarks.data.images import Images
from benchmarks.data.mnist import CLASSES
from benchmarks.experiments.mnist.training import LR, ORDER_STREAM, DropWeights, Method, begin, network

SIZES = (6, 5, CLASSES)
P = (0.3, 0.5)
METHODS = [
    Method(),
    Method("dropout", P),
    Method("DropConnect", P),
    Method("every step", P),
    Method("masks", P, k=3),
    Method("masks", P, k=3, boost=2),
]


@pytest.fixture
def digits() -> Images:
    """42 images, so that the last batch of 16 is short."""
    return Images(torch.randn(42, 6), torch.arange(42) % CLASSES, torch.randn(30, 6), torch.arange(30) % CLASSES)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_training_is_the_plain_loop(method: Method, digits: Images) -> None:
    model = network(method, 7, SIZES)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    torch.manual_seed(7)
    if method.kind == "masks":
        mrreg.attach(optimizer, model, seed=7)
    examples = torch.randperm(42, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(ORDER_STREAM + 7)
    for _ in range(2):
        for index in torch.split(examples[torch.randperm(len(examples), generator=generator)], 16):
            optimizer.zero_grad()
            F.cross_entropy(model(digits.x[index]), digits.y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    loop = begin(method, digits, 7, 16, SIZES[1], momentum=0.9)
    fit(loop, Plan([6], ["test"]), torch.device("cpu"))
    for mine, theirs in zip(loop.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    hits = model.eval()(digits.test_x).argmax(1) == digits.test_y
    assert loop.evaluate("test") == pytest.approx(100 * hits.double().mean().item())


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
