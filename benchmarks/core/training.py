"""Training for every experiment: steps with evaluations on the way, one accuracy, and going on after a stop."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from benchmarks.core.checkpoints import Checkpoint, Resumable
from benchmarks.core.timing import clock

Batch = tuple[Tensor, ...]
"""The inputs of the model, and labels last."""


class Trainer(Protocol):
    """A training under way: an experiment builds one for each method and seed."""

    def step(self) -> object:
        """Take one optimizer step on the next batch."""

    def evaluate(self, split: str) -> Any:
        """Return the number that methods are compared by, on the data of a split."""
        ...


class Batches:
    """Batches of a data set without end, whose order follows from a generator and is saved with it.

    Args:
        order: The batches of the next epoch, each as whatever `take` takes (indices, a slice).
        take: The batch itself.
        generator: From which `order` draws; `take` may draw from it too.
    """

    def __init__(
        self,
        order: Callable[[Any], Sequence[Any]],
        take: Callable[[Any], Batch],
        generator: Any,
    ) -> None:
        self._order, self._take, self._generator = order, take, generator
        self._begun = generator.get_state()
        self._epoch: Sequence[Any] = ()
        self._place = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._place == len(self._epoch):
            self._begin()
        self._place += 1
        return self._take(self._epoch[self._place - 1])

    def _begin(self) -> None:
        self._begun = self._generator.get_state()
        self._epoch, self._place = self._order(self._generator), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state at the beginning of the epoch and now, and the place in the epoch."""
        now = self._generator.get_state()
        return {"begun": self._begun, "now": now, "place": self._place, "any": len(self._epoch) > 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""
        self._generator.set_state(state["begun"])
        if state["any"]:
            self._begin()
            self._place = state["place"]
        self._generator.set_state(state["now"])


def shuffled(count: int, size: int, *, short: bool = True) -> Callable[[torch.Generator], Sequence[Tensor]]:
    """Return an `order` for `Batches`: the indices of all examples, each epoch anew; a short last batch is optional."""

    def order(generator: torch.Generator) -> Sequence[Tensor]:
        parts = torch.randperm(count, generator=generator).split(size)  # type: ignore[no-untyped-call]
        return [part for part in parts if short or len(part) == size]

    return order


def drawn_batches(x: Tensor, y: Tensor, size: int, generator: torch.Generator) -> Batches:
    """Return batches of examples and their labels without end; a short last one of an epoch is left out."""
    return Batches(shuffled(len(y), size, short=False), lambda index: (x[index], y[index]), generator)


@torch.no_grad()
def accuracy(
    model: nn.Module, batches: Iterable[Batch], decide: Callable[[Tensor], Tensor] = lambda logits: logits.argmax(-1)
) -> float:
    """Return the percentage of examples whose label a model in evaluation mode decides on."""
    before = model.training
    model.eval()
    right, count = torch.zeros((), dtype=torch.long), 0
    for *inputs, y in batches:
        right = (decide(model(*inputs)) == y).sum() + right.to(y.device)
        count += len(y)
    model.train(before)
    return float(100 * right.double() / count)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of (..., classes) and (...)."""
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Iterable[Batch]) -> float:
    """Return the mean cross-entropy of all labels, the model being in evaluation mode."""
    model.eval()
    losses, count = [], 0
    for *inputs, y in batches:
        losses.append(y.numel() * cross_entropy(model(*inputs), y).double())
        count += y.numel()
    return float(torch.stack(losses).sum()) / count


STATEFUL = ("model", "optimizer", "batches")


@dataclass
class Loop:
    """The ordinary training loop, as a `Trainer`."""

    model: nn.Module  # takes all of a batch but the labels
    optimizer: Optimizer  # over its parameters
    batches: Iterator[Batch]  # to train on
    # to evaluate on: batches by the name of the split
    splits: Mapping[str, Callable[[], Iterable[Batch]]] = field(default_factory=dict)
    metric: Callable[[nn.Module, Iterable[Batch]], Any] = accuracy  # what is evaluated
    loss: Callable[[Any, Tensor], Tensor] = cross_entropy  # of outputs and labels
    # called with the number of steps taken so far before each step: a schedule as a function of the step
    before: Callable[[int], object] = lambda step: None
    after: Callable[[], object] = lambda: None  # called after every step
    forward: Callable[[], AbstractContextManager[Any]] = nullcontext  # a context for the forward pass (autocast)
    steps: int = 0

    def step(self) -> None:
        """Forward, backward, update."""
        *inputs, y = next(self.batches)
        self.model.train()
        self.before(self.steps)
        with self.forward():
            loss = self.loss(self.model(*inputs), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.after()
        self.steps += 1

    def evaluate(self, split: str) -> Any:
        """Return the metric on a split."""
        return self.metric(self.model, self.splits[split]())

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next steps depend on, but for torch's random state."""
        return {name: getattr(self, name).state_dict() for name in STATEFUL} | {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for name in STATEFUL:
            getattr(self, name).load_state_dict(state[name])
        self.steps = state["steps"]


@dataclass
class Curve:
    """Numbers by split and step at which they were found, the steps taken so far, and their seconds.

    `times` are the seconds of all steps up to each evaluation; evaluations are not in them.
    """

    values: dict[str, dict[int, Any]]
    times: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Return all of it."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved one."""
        vars(self).update(state)


@dataclass(frozen=True)
class Plan:
    """The length of a training, and its evaluations."""

    at: Collection[int]  # after how many steps to evaluate; the last one ends the training
    splits: Sequence[str]  # on what
    # end after so many evaluations without a new best one on the first split; None never does
    patience: int | None = None
    lower: bool = False  # less is better

    def ended(self, curve: Curve) -> bool:
        """Tell whether the training has gone on for long enough."""
        if self.patience is None:
            return False
        seen = list(curve.values[self.splits[0]].values())
        best = (min if self.lower else max)(seen, default=0.0)
        return len(seen) - 1 - (seen.index(best) if seen else 0) >= self.patience


def fit(
    trainer: Trainer,
    plan: Plan,
    device: torch.device,
    checkpoint: Path | None = None,
) -> Curve:
    """Train, and evaluate on the way.

    Args:
        trainer: Takes the steps.
        plan: How many, and what to evaluate when.
        device: Whose seconds are counted; those of evaluations are left out.
        checkpoint: The file from which a training that was cut short goes on; None begins anew.
    """
    curve = Curve({split: {} for split in plan.splits})
    saved = Checkpoint(checkpoint if isinstance(trainer, Resumable) else None, {"trainer": trainer, "curve": curve})
    saved.load()
    now = clock(device)
    start = now()
    for step in range(curve.steps + 1, max(plan.at) + 1):
        if plan.ended(curve):
            break
        trainer.step()
        curve.steps = step
        if step in plan.at or saved.due():
            curve.seconds += now() - start
            if step in plan.at:
                curve.times[step] = curve.seconds
                for split in plan.splits:
                    curve.values[split][step] = trainer.evaluate(split)
            if saved.due():
                saved.save()
            start = now()
    return curve
