"""Every way to write a product is read, and what could hide a channel does not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

from mrreg.thinning.influence import Influence
from mrreg.thinning.recorder import Recording
from mrreg.thinning.twin import Inputs, double_copy, probing, randomize


def recording(model: nn.Module, *inputs: Tensor) -> Recording:
    twin = double_copy(model)
    with probing(twin):
        randomize(twin)
        doubles = tuple(each.double() if each.is_floating_point() else each for each in inputs)
        return Recording(twin, Inputs(doubles, {})).run()


class Product(nn.Module):
    def __init__(self, forward: Callable[..., Tensor], *shape: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(7))
        self.product = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


X = torch.randn(3, 5)
PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], Tensor, int, int | None]] = {
    "linear": (F.linear, (7, 5), X, 0, 1),
    "operator": (lambda x, w, b: x @ w, (5, 7), X, 1, 0),
    "mm with the weight turned": (lambda x, w, b: x.mm(w.t()), (7, 5), X, 0, 1),
    "weight first": (lambda x, w, b: w @ x.t(), (7, 5), X, 0, 1),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), (5, 7), X, 1, 0),
    "part of a weight": (lambda x, w, b: F.linear(x, w[2:9]), (11, 5), X, 0, 1),
    "einsum": (lambda x, w, b: torch.einsum("n i, o i -> n o", x, w), (7, 5), X, 0, 1),
    "einsum with the weight first": (lambda x, w, b: torch.einsum("oi,nid->nod", w, x[..., None]), (7, 5), X, 0, 1),
    "bmm": (lambda x, w, b: torch.bmm(x[None], w), (1, 5, 7), X, 2, 1),
    "computed from the weight": (lambda x, w, b: F.linear(x, w.exp() / w.exp().norm()), (7, 5), X, 0, 1),
    "embedding": (lambda x, w, b: F.embedding(x, w), (9, 7), torch.tensor([1, 4]), 1, None),
    "conv3d": (F.conv3d, (7, 5, 1, 1, 1), torch.randn(2, 5, 2, 3, 4), 0, 1),
    "conv_transpose2d": (F.conv_transpose2d, (5, 7, 2, 2), torch.randn(2, 5, 4, 4), 1, 0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_read_however_it_is_written(name: str) -> None:
    forward, shape, x, row, column = PRODUCTS[name]
    found = recording(Product(forward, *shape), x)
    (op,) = found.ops
    assert (op.rows.name, op.rows.dim, op.rows.size) == ("weight", row, 7)
    assert (None if op.columns is None else (op.columns.dim, op.columns.size)) == (
        None if column is None else (column, 5)
    )
    assert op.made.shape[op.made_dim] == 7
    assert op.rows.start == (2 if name == "part of a weight" else 0)


@pytest.mark.parametrize(
    ("forward", "shape"),
    [
        (lambda x, w, b: torch.tensordot(x, w, 1), (5, 7)),
        (lambda x, w, b: torch.einsum("nhi,hio->nho", x[:, None], w), (1, 5, 7)),
        (lambda x, w, b: F.linear(x, w * x.mean()), (7, 5)),
        (lambda x, w, b: F.linear(x, w.t() * 2), (5, 7)),
        (lambda x, w, b: F.conv1d(x[..., None], w, groups=5), (5, 1, 1)),
        (lambda x, w, b: F.conv1d(x[..., None], w, None, 1, 0, 1, 5), (5, 1, 1)),
        (lambda x, w, b: torch.addmm(b, x, w, beta=2), (5, 7)),
    ],
)
def test_what_cannot_be_read_stays_in_the_graph(forward: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    found = recording(Product(forward, *shape), X)
    assert not found.ops
    assert found.outputs[0].requires_grad


class Below(nn.Module):
    """A layer whose outputs a function could hide from the next one."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.relu(x - 1e3),
        lambda x: F.hardswish(x - 1e2),
        lambda x: F.hardsigmoid(x - 1e2),
        lambda x: (x - 1e2).clamp(min=0),
        lambda x: F.leaky_relu(x, 0.0),
        lambda x: F.adaptive_max_pool2d(F.relu(x - 1e2), 1),
        lambda x: x.add_(1).mul_(2),
    ],
)
def test_no_channel_is_dead(function: Callable[[Tensor], Tensor]) -> None:
    found = recording(Below(function), torch.randn(1, 3, 4, 4))
    influence = Influence(found, found.ops[1].taken, -3)
    assert [
        (each.start, each.stop, len(each.sources)) for each in sorted(influence.ranges(), key=lambda b: b.start)
    ] == [(i, i + 1, 1) for i in range(6)]


class Writer(nn.Module):
    """Writes to a buffer in its forward, after it has used it."""

    def __init__(self, write: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.make, self.read, self.write = nn.Linear(4, 6), nn.Linear(6, 2), write
        self.register_buffer("seen", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.make(x).tanh()
        y: Tensor = self.read(h * self.seen)
        self.write(self.get_buffer("seen"), h.detach().square().mean(0))
        return y


def unseen_by_autograd(seen: Tensor, new: Tensor) -> None:
    with torch.no_grad():
        seen.lerp_(new, 0.1)


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "in place": lambda seen, new: seen.mul_(0.9).add_(new),
    "without gradients": unseen_by_autograd,
    "items": lambda seen, new: seen[1:].__setitem__(0, new[0]),
    "operator": lambda seen, new: seen.__imul__(new),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_a_buffer_that_the_forward_writes_to_is_read_all_the_same(write: Callable[[Tensor, Tensor], object]) -> None:
    found = recording(Writer(write), X[:, :4])
    taken = Influence(found, found.ops[1].taken, -1)
    assert sorted((each.start, each.sources) for each in taken.ranges()) == [(i, frozenset({i})) for i in range(6)]
    (seen,) = taken.gradients(None, [found.others["seen"]])
    assert seen is not None
    assert seen.ne(0).all()


def test_statistics_of_instances_are_of_one_channel_each() -> None:
    norm = nn.InstanceNorm1d(6, track_running_stats=True)
    found = recording(nn.Sequential(nn.Conv1d(5, 6, 3), norm, nn.Conv1d(6, 2, 3)), torch.randn(2, 5, 9))
    taken = Influence(found, found.ops[1].taken, 1)
    assert sorted((each.start, each.sources) for each in taken.ranges()) == [(i, frozenset({i})) for i in range(6)]


def test_a_function_without_a_gradient_for_a_buffer_is_passed() -> None:
    quantize: nn.Module = FakeQuantize(MovingAverageMinMaxObserver)  # type: ignore[no-untyped-call]
    found = recording(nn.Sequential(nn.Linear(5, 6), quantize, nn.Linear(6, 2)), X)
    assert len(found.ops) == 2
    assert found.outputs
