"""The one training loop: what it does to a model, what it evaluates, and how it goes on after a stop."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core import checkpoints
from benchmarks.core.training import Batch, Batches, Loop, Plan, accuracy, fit, shuffled

CPU = torch.device("cpu")


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 6, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def batches(seed: int = 0) -> Batches:
    x, y = data()
    return Batches(shuffled(20, 4), lambda index: (x[index], y[index]), torch.Generator().manual_seed(seed))


def masked() -> Loop:
    net = nn.Sequential(mrreg.MultirateMask(nn.Linear(6, 8), p=0.5, k=3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    mrreg.attach(optimizer, net, seed=3)
    return Loop(net, optimizer, batches(), {"test": lambda: [data()]})


def multirate() -> Loop:
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = mrreg.MultirateSGD(net, lr=0.01, k=4, fast="2", momentum=0.9)
    return Loop(net, optimizer, batches(), {"test": lambda: [data()]})


class KilledError(Exception):
    """Stands for a kill."""


def stopping(loop: Loop, at: int) -> Loop:
    def before(steps: int) -> None:
        if steps == at - 1:
            raise KilledError

    loop.before = before
    return loop


@pytest.mark.parametrize("make", [masked, multirate])
@pytest.mark.parametrize("stops", [(6,), (2, 3, 16)])
def test_a_training_cut_short_ends_like_one_that_was_not(
    make: Callable[[], Loop], stops: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", -1.0)  # after every step
    plan, path = Plan((4, 9, 17), ("test",)), tmp_path / "unfinished"

    def begin() -> Loop:
        torch.manual_seed(1)
        return make()

    undisturbed = begin()
    whole = fit(undisturbed, plan, CPU)
    for stop in stops:
        with pytest.raises(KilledError):
            fit(stopping(begin(), stop), plan, CPU, path)
        assert path.exists()
    last = begin()
    curve = fit(last, plan, CPU, checkpoint=path)
    assert curve.values == whole.values
    assert (last.steps, curve.steps) == (17, 17)
    for ours, theirs in zip(last.model.parameters(), undisturbed.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_young_training_writes_nothing(tmp_path: Path) -> None:
    fit(multirate(), Plan((5,), ("test",)), CPU, checkpoint=tmp_path / "unfinished")
    assert list(tmp_path.iterdir()) == []


def test_a_step_is_the_plain_loop() -> None:
    torch.manual_seed(0)
    loop = multirate()
    calls: list[int] = []
    loop.before, loop.after = calls.append, lambda: calls.append(-1)
    torch.manual_seed(0)
    other = multirate()
    for x, y in islice(batches(), 6):
        loss = nn.functional.cross_entropy(other.model(x), y)
        other.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        other.optimizer.step()
    torch.manual_seed(0)
    multirate()  # draws what the other has drawn
    for _ in range(6):
        loop.step()
    assert all(torch.equal(a, b) for a, b in zip(loop.model.parameters(), other.model.parameters(), strict=True))
    assert calls == [n for step in range(6) for n in (step, -1)]


@pytest.mark.parametrize("short", [True, False])
def test_an_epoch_is_every_example_once_in_a_new_order(short: bool) -> None:
    def labels() -> list[int]:
        drawn = Batches(shuffled(10, 4, short=short), lambda i: (i, i), torch.Generator().manual_seed(5))
        return torch.cat([y for _, y in islice(drawn, 6 if short else 4)]).tolist()

    seen, size = labels(), 10 if short else 8
    assert len(set(seen[:size])) == len(set(seen[size:])) == size
    assert seen[:size] != seen[size:]
    assert seen == labels()


def noisy(seed: int) -> Batches:
    """Batches whose augmentation draws from the generator of their order."""
    generator = torch.Generator().manual_seed(seed)
    return Batches(shuffled(20, 4), lambda index: (torch.rand(4, generator=generator), index), generator)


@pytest.mark.parametrize("make", [batches, noisy])
@pytest.mark.parametrize("taken", [0, 3, 5, 11])
def test_batches_go_on_where_they_were(make: Callable[[int], Batches], taken: int) -> None:
    first, second = make(1), make(2)
    list(islice(first, taken))
    second.load_state_dict(first.state_dict())
    for (x, _), (z, _) in islice(zip(first, second, strict=True), 12):
        assert torch.equal(x, z)


@pytest.mark.parametrize(
    ("found", "lower", "steps"), [([3, 4, 2, 1, 9], False, 4), ([3, 2, 4, 5, 1], True, 4), ([1, 2, 3, 4, 5], False, 5)]
)
def test_patience_ends_a_training_that_has_passed_its_best(found: list[float], lower: bool, steps: int) -> None:
    class Given:
        def __init__(self) -> None:
            self.steps = 0

        def step(self) -> None:
            self.steps += 1

        def evaluate(self, split: str) -> float:
            return float(found[self.steps - 1])

    curve = fit(Given(), Plan(range(1, 6), ("validation",), 2, lower), CPU)
    assert curve.steps == steps
    assert list(curve.values["validation"].values()) == found[:steps]


class Says(nn.Module):
    """Says class 0 in evaluation mode, 1 in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([0.0, 1.0] if self.training else [1.0, 0.0]).expand(*x.shape[:-1], 2)


def test_accuracy_counts_the_right_ones_over_all_batches_and_leaves_the_mode() -> None:
    model = Says()
    parts: list[Batch] = [(torch.zeros(3, 1), torch.tensor([0, 0, 1])), (torch.zeros(1, 1), torch.tensor([1]))]
    assert accuracy(model, parts) == 50.0
    assert model.training
    assert accuracy(model.eval(), parts[:1], lambda out: out.argmin(-1)) == pytest.approx(100 / 3)
    assert not model.training
