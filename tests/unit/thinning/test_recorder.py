"""Every way to write a product is read, and what could hide a channel does not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrreg.thinning.double_copy import Inputs, double_copy, probing, randomize
from mrreg.thinning.influence import Influence
from mrreg.thinning.recorder import Recording, record


def recording(model: nn.Module, *inputs: Tensor) -> Recording:
    twin = double_copy(model)
    with probing(twin):
        randomize(twin)
        doubles = tuple(each.double() if each.is_floating_point() else each for each in inputs)
        return record(twin, Inputs(doubles, {}))


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
    "linear by keywords": (lambda x, w, b: F.linear(weight=w, input=x, bias=b), (7, 5), X, 0, 1),
    "operator": (lambda x, w, b: x @ w, (5, 7), X, 1, 0),
    "matmul": (lambda x, w, b: torch.matmul(x[None], w), (5, 7), X, 1, 0),
    "mm with the weight turned": (lambda x, w, b: x.mm(w.t()), (7, 5), X, 0, 1),
    "weight first": (lambda x, w, b: w @ x.t(), (7, 5), X, 0, 1),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), (5, 7), X, 1, 0),
    "part of a weight": (lambda x, w, b: F.linear(x, w[2:9]), (11, 5), X, 0, 1),
    "embedding": (lambda x, w, b: F.embedding(x, w), (9, 7), torch.tensor([1, 4]), 1, None),
    "conv1d": (F.conv1d, (7, 5, 3), torch.randn(2, 5, 9), 0, 1),
    "conv2d": (F.conv2d, (7, 5, 3, 3), torch.randn(2, 5, 9, 9), 0, 1),
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
        (lambda x, w, b: torch.einsum("ni,oi->no", x, w), (7, 5)),
        (lambda x, w, b: F.linear(x, w * 2), (7, 5)),
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
        lambda x: torch.relu_(x - 1e3),
        lambda x: F.relu6(x + 1e2),
        lambda x: F.hardswish(x - 1e2),
        lambda x: F.hardsigmoid(x - 1e2),
        lambda x: (x - 1e2).clamp(min=0),
        lambda x: F.leaky_relu(x, 0.0),
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.adaptive_max_pool2d(F.relu(x - 1e2), 1),
        lambda x: x.add_(1).mul_(2),
    ],
)
def test_no_channel_is_dead(function: Callable[[Tensor], Tensor]) -> None:
    found = recording(Below(function), torch.randn(1, 3, 4, 4))
    influence = Influence(found, found.ops[1].taken, -3)
    assert [
        (block.start, block.stop, len(block.sources)) for block in sorted(influence.blocks(), key=lambda b: b.start)
    ] == [(i, i + 1, 1) for i in range(6)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_that_hooks_of_torch_compute_are_computed(norm: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 2))
    assert [op.rows.name for op in recording(model, torch.randn(3, 4)).ops] == ["2.weight"]
