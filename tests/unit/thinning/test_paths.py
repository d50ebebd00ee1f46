"""Forwards that take several paths, return what cannot be compared, or write to buffers: tried, refused or an error."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.notes import note_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mrreg
from mrreg.thinning.paths import NoDropout

X = torch.randn(4, 8)


class Net(nn.Module):
    """Two layers, with something between them that a test says."""

    def __init__(self, between: Callable[["Net", Tensor], Tensor] = lambda _, hidden: hidden) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)
        self.between = between

    def forward(self, x: Tensor) -> object:
        return self.down(self.between(self, torch.relu(self.norm(self.up(x)))))


def centred(hidden: Tensor) -> Tensor:
    return hidden - hidden.mean(-1, keepdim=True)


def _numpy_lot(model: Net, hidden: Tensor) -> Tensor:
    return centred(hidden) if model.training and np.random.rand() < 0.01 else hidden  # noqa: NPY002


RARE: dict[str, tuple[str, Callable[[Net, Tensor], Tensor]]] = {
    "torch": ("near 0", lambda model, h: centred(h) if model.training and torch.rand(1) < 0.01 else h),
    "largest": ("near 1", lambda model, h: centred(h) if model.training and torch.rand(()) > 0.99 else h),
    "bernoulli": ("near 1", lambda model, h: centred(h) if torch.empty(()).bernoulli_(0.01) else h),
    "random": ("near 0", lambda model, h: centred(h) if model.training and random.random() < 0.01 else h),
    "numpy": ("near 0", _numpy_lot),
}


@pytest.mark.parametrize("kind", RARE)
@pytest.mark.filterwarnings("ignore:thin. no group")
def test_a_path_that_is_rarely_taken_is_tried_and_told(kind: str) -> None:
    where, between = RARE[kind]
    with pytest.warns(UserWarning, match=f"takes another path with random numbers {where}, and may take more") as told:
        _, report = mrreg.thin(Net(between), example_inputs=X)
    assert told[0].filename == __file__
    assert report["up"].reason.endswith(f"with random numbers {where}")


@pytest.mark.filterwarnings("ignore:thin. no group")
def test_a_path_that_data_decide_is_tried_and_told() -> None:
    class Signed(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.up(x))
            return self.down(centred(hidden) if x.mean() > 1 else hidden)  # type: ignore[no-any-return]

    with pytest.warns(UserWarning, match="takes another path with example_inputs times -10"):
        _, report = mrreg.thin(Signed(), example_inputs=X.abs().neg())
    assert report["up"].reason.endswith("with example_inputs times -10")


class Skipping(nn.Module):
    """Leaves whole layers out at random, as LayerDrop does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not self.training or torch.rand(()) >= 0.1:
                x = x + layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def test_layers_that_are_skipped_as_a_whole_can_be_thin() -> None:
    with pytest.warns(UserWarning, match="takes another path with random numbers near 0"):
        _, report = mrreg.thin(Skipping(), example_inputs=X)
    assert len(report.groups) == 3


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_noise_and_dropout_decide_nothing(p: float) -> None:
    def noisy(model: Net, hidden: Tensor) -> Tensor:
        return torch.dropout(hidden + torch.randn(len(hidden), 1), p, model.training)

    _, report = mrreg.thin(Net(noisy), example_inputs=X)
    assert report["up"].admitted


class Plain:
    """An object in which nobody can look for tensors."""

    def __init__(self, logits: object) -> None:
        self.logits = logits


@pytest.mark.parametrize("only_training", [False, True])
def test_an_output_without_tensors_is_refused(only_training: bool) -> None:
    class Wrapped(Net):
        def forward(self, x: Tensor) -> object:
            out = super().forward(x)
            return Plain(out) if self.training or not only_training else out

    with pytest.raises(RuntimeError, match="thin: the output holds no tensors that can be compared: Plain"):
        mrreg.thin(Wrapped(), example_inputs=X)


class Auxiliary(Net):
    """Has a second head in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> object:
        hidden = torch.relu(self.norm(self.up(x)))
        return (self.down(hidden), self.aux(hidden)) if self.training else self.down(hidden)


@pytest.mark.parametrize("examples", [1, 4])
@pytest.mark.filterwarnings("ignore:thin. no group")
def test_paths_of_training_mode_are_tried_also_where_batch_norm_refuses(examples: int) -> None:
    _, report = mrreg.thin(Auxiliary(), example_inputs=X[:examples])
    assert report["up"].reason.startswith("units that nothing should read have an effect")


@pytest.mark.parametrize("examples", [1, 4])
def test_one_example_is_enough_for_batch_norm(examples: int) -> None:
    _, report = mrreg.thin(Net(), example_inputs=X[:examples])
    assert report["up"].admitted


def test_a_forward_that_fails_in_training_mode_says_so() -> None:
    class Labelled(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> object:
            if self.training and labels is None:
                raise ValueError("no labels")
            return super().forward(x)

    with pytest.raises(ValueError, match="no labels") as caught:
        mrreg.thin(Labelled(), example_inputs=X)
    assert "in training mode" in note_of(caught.value)
    mrreg.thin(Labelled(), example_inputs=(X, X))


class Averaging(Net):
    """Replaces a buffer in training mode."""

    average: Tensor

    def __init__(self, read: bool) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(16))
        self.read = read

    def forward(self, x: Tensor) -> object:
        hidden = torch.relu(self.up(x))
        if self.training:
            self.average = self.average * 0.9 + hidden.detach().mean(0) if self.read else hidden.detach().mean(0)
        return self.down(hidden - self.average if self.read else hidden)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.filterwarnings("ignore:thin. no group")
def test_a_buffer_that_the_forward_replaces_by_a_small_one_is_refused(read: bool) -> None:
    model = Averaging(read)
    _, report = mrreg.thin(model, example_inputs=X)
    fault = "the forward replaces the buffer average" if read else "the buffer average gets another shape"
    assert report["up"].reason == fault
    assert not model.average.any()


class Checkpointed(Net):
    """Recomputes a layer; if `in_training`, in training mode alone."""

    def __init__(self, reentrant: bool, in_training: bool) -> None:
        super().__init__()
        self.reentrant, self.in_training, self.first = reentrant, in_training, nn.Linear(8, 8)
        self.inner = nn.Sequential(self.up, self.norm, nn.ReLU())

    def forward(self, x: Tensor) -> object:
        x = self.first(x)
        if self.training or not self.in_training:
            return self.down(checkpoint(self.inner, x, use_reentrant=self.reentrant))
        return self.down(self.inner(x))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("in_training", [False, True])
def test_layers_in_a_checkpoint_are_searched_and_tried(reentrant: bool, in_training: bool) -> None:
    _, report = mrreg.thin(Checkpointed(reentrant, in_training), example_inputs=X)
    assert report["up"].admitted


def test_modules_inside_a_checkpoint_can_be_thin() -> None:
    model = Checkpointed(False, False)
    model.inner = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16))
    mrreg.thin(model.inner, example_inputs=X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    out = model(X)
    assert isinstance(out, Tensor)
    torch.autograd.backward(out.sum())
    weight = model.inner[0].weight
    assert isinstance(weight.grad, Tensor)
    assert (weight.grad == 0).all(1).sum() == 16


def test_calls_name_the_parameters_that_they_take() -> None:
    one, two, x = nn.Linear(2, 2), nn.Linear(2, 2), torch.ones(1, 2)
    with NoDropout() as watch:
        one(two(x))
    assert watch.calls == [("linear", (id(each.weight), id(each.bias))) for each in (two, one)]
