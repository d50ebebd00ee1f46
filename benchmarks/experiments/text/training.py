"""Training, evaluation and the cost of a step for the text benchmarks."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from benchmarks.core.timing import synchronize
from benchmarks.experiments.text.data import Texts
from benchmarks.experiments.text.encoder import Classifier

Batch = tuple[Tensor, Tensor, Tensor]
CHUNK = 64  # texts evaluated at once
WARM = 2  # tokens of each text in steps that are not timed


def nothing() -> None:
    """What is done after a step where nothing is to be done."""


@dataclass
class Trainee:
    """What a method trains, with what, and what it does after every step (a scheduler, a change of layers).

    Args:
        model: Takes token ids and mask, returns logits; the classifier itself or something around it.
        optimizer: Over the parameters that train.
        after: Called after every optimizer step.
    """

    model: nn.Module
    optimizer: Optimizer
    after: Callable[[], object] = nothing


Method = Callable[[Classifier, int], Trainee]
"""What makes a `Trainee` of a freshly loaded classifier and a seed: a method of the comparison."""


def train(
    trainee: Trainee,
    batches: Iterator[Batch],
    steps: int,
    watch: Callable[[int], object] = lambda step: None,
    at: Collection[int] = (),
) -> float:
    """Train for some steps, in training mode, and call `watch` after those in `at` (counted from 1).

    Returns:
        The seconds of the training steps: of this process on CPU, of the clock on other devices.
    """
    seconds = 0.0
    for step in range(1, steps + 1):
        seconds += one_step(trainee, next(batches))
        if step in at:
            watch(step)
    return seconds


def one_step(trainee: Trainee, batch: Batch) -> float:
    """Forward, backward, update; returns its seconds."""
    ids, mask, y = batch
    trainee.model.train()
    start = now(y.device)
    F.cross_entropy(trainee.model(ids, mask), y).backward()  # type: ignore[no-untyped-call]
    trainee.optimizer.step()
    trainee.optimizer.zero_grad()
    trainee.after()
    return now(y.device) - start


def now(device: torch.device) -> float:
    """A clock: CPU seconds of this process, which other processes disturb little; on other devices that of the wall."""
    if device.type == "cpu":
        return time.process_time()
    synchronize(device)
    return time.perf_counter()


def accuracy(model: nn.Module, texts: Texts) -> float:
    """Percent of texts whose label is named rightly, in evaluation mode; in the order of their lengths."""
    model.eval()
    right = 0
    with torch.no_grad():
        for index in torch.split(texts.length.argsort(), CHUNK):
            ids, mask, y = texts.batch(index)
            right += int((model(ids, mask).argmax(1) == y).sum())
    return 100 * right / len(texts)


def costs(
    makers: Mapping[str, Callable[[], Trainee]], batches: Mapping[str, list[Batch]], rounds: int
) -> dict[str, float]:
    """Seconds of a step of each method over its batches, the methods in turns: the median of the rounds.

    Args:
        makers: What makes each method's trainee, anew in every round, so that one model at a time is in memory.
        batches: Of each method: whole cycles.
        rounds: How often everybody has a turn.
    """
    times: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(rounds):
        for name, make in makers.items():
            trainee = make()
            for ids, mask, y in batches[name]:  # short texts: optimizer state is made, and whole cycles end
                one_step(trainee, (ids[:, :WARM], mask[:, :WARM], y))
            times[name].append(fmean(one_step(trainee, batch) for batch in batches[name]))
    return {name: median(each) for name, each in times.items()}
