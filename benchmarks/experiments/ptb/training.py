"""Training a language model on Penn Treebank by one method; what is watched is the validation loss of each epoch."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import mrreg
from benchmarks.experiments.ptb.data import Text
from benchmarks.experiments.ptb.model import LanguageModel

LR = 0.1  # the paper's h and h_F
LAYERS, LENGTH = 2, 35
HELD_OUT_ROWS = 50  # of a batch of held-out text; every 35 words are read on their own, so this changes speed only

Track = Callable[[Iterable[int]], Iterable[int]]


@dataclass(frozen=True)
class Method:
    """How the encoder layers are regularized.

    Args:
        kind: "masks" on every weight matrix of the encoder layers, entry by entry; "unit masks" are what
            `mrreg.swap_dropout` makes of these layers' dropout, rescaled as dropout is.
        p: Chance of dropout, or to be slow.
        k: Steps of a cycle of masks.
        boost: h_S / h_F; None is k.
        rescale: Whether masks divide the kept weights by 1 - p.
        momentum: Of SGD.
    """

    kind: Literal["SGD", "dropout", "masks", "unit masks"] = "SGD"
    p: float = 0.0
    k: int = 5
    boost: float | None = None
    rescale: bool = False
    momentum: float = 0.9


@dataclass(frozen=True)
class Setting:
    """How long, and in what batches.

    Args:
        epochs: At most so many.
        batch: Rows of a batch of 35 words each.
        patience: Training ends after so many epochs without a new minimum of the validation loss; None never does.
        width: Of the model.
        bfloat16: Whether matrices are multiplied in bfloat16.
    """

    epochs: int
    batch: int = 128
    patience: int | None = None
    width: int = 200
    bfloat16: bool = False


@dataclass(frozen=True)
class Curve:
    """Loss in nats a word after each epoch; training loss is the mean over the epoch, in training mode."""

    train: list[float]
    valid: list[float]
    test: list[float]
    seconds: float
    """Of the training alone, by the process's own clock on the CPU (others on the machine hardly change it)."""


def train(method: Method, setting: Setting, text: Text, seed: int, track: Track = iter) -> Curve:
    """Train a model; its weights, dropout and masks follow from the seed, the order of the text is always the same.

    Args:
        method: How.
        setting: For how long, with what.
        text: On what; its device is where the model is put.
        seed: Of weights, dropout and masks.
        track: Wraps the epochs in a progress bar.
    """
    torch.manual_seed(seed)
    model = network(method, text.words, setting.width).to(text.train.device)
    optimizer = SGD(model.parameters(), lr=LR, momentum=method.momentum)
    if method.kind.endswith("masks"):
        mrreg.attach(optimizer, model, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator
    rows, valid, test = (in_rows(part, n) for part, n in zip(
        (text.train, text.valid, text.test), (setting.batch, HELD_OUT_ROWS, HELD_OUT_ROWS), strict=True
    ))  # fmt: skip
    curve, seconds = Curve([], [], [], 0.0), 0.0
    for epoch in track(range(setting.epochs)):
        start = _clock(rows.device)
        curve.train.append(train_epoch(model, optimizer, rows, bfloat16=setting.bfloat16))
        seconds += _clock(rows.device) - start
        curve.valid.append(held_out_loss(model, valid))
        curve.test.append(held_out_loss(model, test))
        if setting.patience is not None and epoch - curve.valid.index(min(curve.valid)) >= setting.patience:
            break
    return Curve(curve.train, curve.valid, curve.test, seconds)


def network(method: Method, words: int, width: int = 200) -> nn.Module:
    """The model, with dropout or masks in its encoder layers."""
    dropout = method.p if method.kind in ("dropout", "unit masks") else 0.0
    model: nn.Module = LanguageModel(words, width, layers=LAYERS, length=LENGTH, dropout=dropout)
    if method.kind == "unit masks":
        return mrreg.swap_dropout(model, method.k, rescale=True, boost=method.boost)[0]
    if method.kind == "masks":
        patterns = {f"encoder.layers.{layer}": method.p for layer in range(LAYERS)}
        return mrreg.mask(model, patterns, method.k, rescale=method.rescale, boost=method.boost)
    return model


def in_rows(text: Tensor, rows: int) -> Tensor:
    """The text cut into rows of equal length that are read side by side; what is left over is dropped."""
    return text[: len(text) // rows * rows].view(rows, -1)


def batches(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """At most 35 words of each row, and the word that follows each, in the order of the text."""
    yield from zip(rows[:, :-1].split(LENGTH, 1), rows[:, 1:].split(LENGTH, 1), strict=True)  # type: ignore[no-untyped-call]


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor, *, bfloat16: bool = False) -> float:
    """One pass over the text; returns the mean training loss a batch."""
    model.train()
    losses = []
    for x, y in batches(rows):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


def held_out_loss(model: nn.Module, rows: Tensor) -> float:
    """Mean loss a word in evaluation mode, where all weights are present; always in the model's own precision."""
    model.eval()
    with torch.no_grad():
        total = torch.stack(
            [F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").double() for x, y in batches(rows)]
        ).sum()
    return float(total) / rows[:, 1:].numel()


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
