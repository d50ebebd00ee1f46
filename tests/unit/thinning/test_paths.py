"""Forwards that take several paths, return what cannot be compared, or write to buffers: tried, refused or an error."""

import random
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mrreg

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


def test_noise_and_dropout_decide_nothing() -> None:
    def noisy(model: Net, hidden: Tensor) -> Tensor:
        return torch.dropout(hidden + torch.randn(len(hidden), 1), 0.5, model.training)

    _, report = mrreg.thin(Net(noisy), example_inputs=X[:1])
    assert report["up"].admitted


class Plain:
    """An object in whose list nobody looks for tensors: caches have such."""

    def __init__(self, logits: object) -> None:
        self.logits = [logits]


def test_an_output_without_tensors_is_refused() -> None:
    class Wrapped(Net):
        def forward(self, x: Tensor) -> object:
            out = super().forward(x)
            return Plain(out) if self.training else out

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


def test_what_the_first_call_sets_is_no_other_path() -> None:
    """As the configuration of a Hugging Face model, which its first loss completes."""
    config = SimpleNamespace(kind=None)

    def first(_: Net, hidden: Tensor) -> Tensor:
        if config.kind is None:
            config.kind, hidden = "set", hidden.clone()
        return hidden

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, report = mrreg.thin(Net(first), p=0.5, example_inputs=X)
    assert report["up"].admitted


def test_a_forward_that_fails_in_training_mode_says_so() -> None:
    class Labelled(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> object:
            if self.training and labels is None:
                raise ValueError("no labels")
            return super().forward(x)

    with pytest.raises(ValueError, match=r"thin: the forward failed on example_inputs=Tensor.*no labels"):
        mrreg.thin(Labelled(), example_inputs=X)
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


class Prototypes(Net):
    """Reads its units by a buffer that training forwards move."""

    prototypes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prototypes", torch.randn(2, 16))

    def forward(self, x: Tensor) -> object:
        hidden = torch.relu(self.up(x))
        output = nn.functional.linear(hidden, self.prototypes.clone())
        if self.training:
            self.prototypes.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        return output


@pytest.mark.filterwarnings("ignore:thin. no group")
def test_units_that_a_buffer_reads_which_the_forward_moves_are_refused() -> None:
    _, report = mrreg.thin(Prototypes(), example_inputs=X)
    assert "the forward writes to 'prototypes', of which it sees only what is present" in report["up"].reason
    assert not report["up"].admitted


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


@pytest.mark.parametrize(("reentrant", "in_training"), [(False, True), (True, False)])
def test_layers_in_a_checkpoint_are_searched_and_tried(reentrant: bool, in_training: bool) -> None:
    _, report = mrreg.thin(Checkpointed(reentrant, in_training), example_inputs=X)
    assert report["up"].admitted


class Valued(Net):
    """Mixes units where values are large, small or far from zero, by the same functions of torch everywhere."""

    def __init__(self, factor: Callable[[Tensor], Tensor], words: bool) -> None:
        super().__init__()
        self.factor, self.words, self.up = factor, nn.Embedding(5, 8) if words else None, nn.Linear(8, 16, bias=False)

    def forward(self, x: Tensor) -> object:
        x = x if self.words is None else 3 * self.words(x)
        hidden = self.up(x)
        return self.down(hidden * self.factor(hidden.norm(dim=-1, keepdim=True)))


VALUED: dict[str, Callable[[Tensor], Tensor]] = {
    "large": lambda norm: (30 / norm).clamp(max=1),
    "small": lambda norm: (norm / 0.2).clamp(max=1),
    "step": lambda norm: torch.where(norm > 15, 15 / norm, torch.ones_like(norm)),
}


@pytest.mark.parametrize(("kind", "words"), [("small", False), ("step", True), ("large", True)])
@pytest.mark.filterwarnings("ignore:thin. no group")
def test_what_values_decide_is_tried_on_other_values(kind: str, words: bool) -> None:
    inputs, kinds = torch.tensor([1, 2]) if words else X, ["hidden", "rank"]
    _, report = mrreg.thin(Valued(VALUED[kind], words), p=0.5, example_inputs=inputs, include=kinds)
    assert not report["up"].admitted
    assert "the output differs by" in report["up"].reason


class Found(nn.Module):
    """Returns what a test says, of units that it scales by their number."""

    def __init__(self, wrap: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.up, self.mean = nn.Linear(8, 16), nn.Linear(16, 2)
        self.other, self.value = nn.Linear(8, 4), nn.Linear(4, 1)
        self.wrap = wrap

    def forward(self, x: Tensor) -> object:
        hidden = torch.tanh(self.up(x))
        return self.wrap(self.mean(hidden) * 16 / hidden.shape[1]), self.value(torch.tanh(self.other(x)))


WRAPPED: dict[str, Callable[[Tensor], object]] = {
    "namespace": lambda y: SimpleNamespace(mean=y),
    "inner": lambda y: SimpleNamespace(inner=SimpleNamespace(y=y)),
    "independent": lambda y: torch.distributions.Independent(torch.distributions.Normal(y, 1.0), 1),
    "complex": lambda y: torch.complex(y, y),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_outputs_in_objects_are_compared(kind: str) -> None:
    _, report = mrreg.thin(Found(WRAPPED[kind]), p=0.5, example_inputs=X)
    assert report["other"].outcome == "left out"
    assert report["up"].outcome == "zeroed"


def test_a_group_that_reaches_nothing_that_is_compared_is_refused() -> None:
    _, report = mrreg.thin(Found(lambda y: Plain(y)), p=0.5, example_inputs=X)
    assert report["other"].admitted
    assert report["up"].reason == "no tensor that the forward returns depends on them"


SINGLE: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda h: h * h.mean(-1, keepdim=True).softmax(1),
    "linalg_vector_norm": lambda h: h / h.norm(dim=1, keepdim=True),
}


@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.filterwarnings("ignore:thin. no group")
def test_an_example_of_one_position_is_told(kind: str) -> None:
    class Pooled(Net):
        def forward(self, x: Tensor) -> object:
            return self.down(SINGLE[kind](self.up(x)).sum(1))

    with pytest.warns(UserWarning, match=f"on example_inputs, {kind} runs along a dimension of one element"):
        mrreg.thin(Pooled(), example_inputs=torch.randn(4, 1, 8))
    _, report = mrreg.thin(Pooled(), example_inputs=torch.randn(4, 3, 8))
    assert report["up"].outcome == ("whole" if kind == "softmax" else "left out")


class Begins(Net):
    """Sets a buffer, or a parameter, with its first batch."""

    mean: Tensor
    ready: Tensor

    def __init__(self, flag: str) -> None:
        super().__init__()
        self.flag, self.done = flag, False
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        self.shift = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> object:
        hidden = self.up(x)
        if self.training and not (self.done if self.flag == "attribute" else bool(self.ready)):
            target = self.shift.data if self.flag == "parameter" else self.mean
            target.copy_(hidden.detach().mean(0))
            self.done, self.ready = True, torch.ones((), dtype=torch.bool)
        return self.down(torch.tanh(hidden - self.mean - self.shift))


@pytest.mark.parametrize("flag", ["buffer", "attribute"])
def test_a_buffer_that_the_first_batch_sets_is_set_whole(flag: str) -> None:
    model, report = mrreg.thin(Begins(flag), example_inputs=X)
    assert report["up"].outcome == "zeroed"
    assert report["up"].reason == "the first batch alone sets the buffer mean"
    assert not model.done
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    model(X)
    assert (model.mean != 0).all()


@pytest.mark.filterwarnings("ignore:thin. no group")
def test_a_parameter_that_the_forward_sets_is_refused() -> None:
    _, report = mrreg.thin(Begins("parameter"), example_inputs=X)
    assert report["up"].reason == "the forward writes to the parameter shift"


def test_what_has_no_float64_is_tried_in_float32() -> None:
    table = torch.randn(8, 8)

    class Single(Net):
        def forward(self, x: Tensor) -> object:
            return super().forward(x @ table)

    model = Single(lambda _, h: h)
    _, report = mrreg.thin(model, example_inputs=X)
    assert report["up"].outcome == "left out"
    _, report = mrreg.thin(Single(lambda _, h: h * 16 / h.shape[1]), example_inputs=X)
    assert report["up"].outcome == "zeroed"


@pytest.mark.filterwarnings("ignore:thin. no group")
def test_hooks_are_tried_and_write_to_copies_of_what_they_refer_to() -> None:
    model, seen = Net(), list[Tensor]()

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append(inputs[0])
        return tuple(map(centred, inputs))

    model.down.register_forward_pre_hook(note)
    _, report = mrreg.thin(model, p=0.5, example_inputs=X)
    assert not report["up"].admitted
    assert seen == []
