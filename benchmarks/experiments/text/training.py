"""Training and evaluation on texts, for all text benchmarks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.core.training import Batch, Loop
from benchmarks.experiments.text.data import Texts, batches
from benchmarks.experiments.text.encoder import Classifier

CHUNK = 64  # texts evaluated at once


@dataclass
class Trainee:
    """A network with its optimizer, and whatever a method does after every step (a change of layers).

    Args:
        model: Takes token ids and mask, returns logits; the classifier itself or something around it.
        optimizer: Over the parameters that train.
        after: Called after every optimizer step.
    """

    model: nn.Module
    optimizer: Optimizer
    after: Callable[[], object] = lambda: None


Prepare = Callable[[Classifier, float, int], Trainee]
"""Makes the trainee of a method from a freshly loaded classifier, an lr and a seed."""


def loop(trainee: Trainee, train: Texts, size: int, seed: int, splits: Mapping[str, Texts]) -> Loop:
    """Return the training of a trainee; the order of the texts follows from the seed alone."""
    return Loop(
        trainee.model,
        trainee.optimizer,
        batches(train, size, torch.Generator().manual_seed(seed)),
        {name: partial(by_length, texts) for name, texts in splits.items()},
        after=trainee.after,
        resumable=False,  # `after` and some optimizers keep what no state has; a training takes less than a minute
    )


def by_length(texts: Texts) -> Iterator[Batch]:
    """Yield all texts in the order of their lengths, so that little is padding."""
    for index in torch.split(texts.length.argsort(), CHUNK):
        yield texts.batch(index)
