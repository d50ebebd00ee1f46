"""The methods that compete on Penn Treebank, their names, and the networks that they train."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

import mrreg
from benchmarks.core.comparison import Search
from benchmarks.experiments.ptb.model import LanguageModel

LR = 0.1  # the paper's h and h_F
LAYERS, LENGTH = 2, 35
MINIMUM = "minimum validation loss"


@dataclass(frozen=True)
class Method:
    """A way to regularize the encoder layers."""

    # "masks" on every weight matrix of the encoder layers, entry by entry; "unit masks" are what `mrreg.swap_dropout`
    # makes of these layers' dropout, rescaled as dropout is
    kind: Literal["SGD", "dropout", "masks", "unit masks"] = "SGD"
    p: float = 0.0  # probability of being dropped, or of being slow
    k: int = 5  # steps of a cycle of masks
    boost: float | None = None  # h_S / h_F; None is k
    momentum: float = 0.9  # of SGD


SEARCHED = {"dropout": Method("dropout"), "masks": Method("masks"), "unit masks": Method("unit masks")}
COMPARED = {"SGD": Method(), **SEARCHED}
FIGURE = ("SGD", "dropout", "masks")
K = {"masks, k = 3": Method("masks", k=3), "masks, k = 10": Method("masks", k=10)}
H_S = {f"masks, h_S = {h:g}": Method("masks", boost=round(h / LR, 6)) for h in (0.2, 0.3, 0.8)}  # 0.5 is k = 5
TABLES = K | H_S
WITHOUT_MOMENTUM = {f"{name}, momentum 0": Method(COMPARED[name].kind, momentum=0.0) for name in FIGURE}
METHODS = COMPARED | TABLES | WITHOUT_MOMENTUM


def search(p: Sequence[float], *names: str) -> Search:
    """Return the search for the p of some methods; all others take what it has found for their kind."""
    return Search(
        {name: [{"p": each} for each in p] for name in names},
        {name: method.kind for name, method in METHODS.items()},
        lambda name, options: f"search: {name}, p = {options['p']:g}",
        score=lambda result: -float(result[MINIMUM]),
    )


def network(method: Method, words: int, width: int = 200) -> nn.Module:
    """Return the model, with dropout or masks in its encoder layers."""
    dropout = method.p if method.kind in ("dropout", "unit masks") else 0.0
    model: nn.Module = LanguageModel(words, width, layers=LAYERS, length=LENGTH, dropout=dropout)
    if method.kind == "unit masks":
        return mrreg.swap_dropout(model, method.k, rescale=True, boost=method.boost)[0]
    if method.kind == "masks":
        patterns = {f"encoder.layers.{layer}": method.p for layer in range(LAYERS)}
        return mrreg.mask(model, patterns, method.k, boost=method.boost)
    return model
