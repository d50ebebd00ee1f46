"""The word-level language model of PyTorch's own transformer tutorial, and the methods that regularize it."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import mrreg

LR = 0.1  # the paper's h and h_F
LAYERS, LENGTH = 2, 35


class LanguageModel(nn.Module):
    """Embedding scaled by sqrt(width), sinusoidal positions, causal encoder layers, a linear decoder.

    Args:
        words: How many different words there are.
        width: Of embedding and encoder layers, and of the feed-forward half inside them; even.
        heads: Of each attention.
        layers: Encoder layers.
        length: The longest sequence.
        dropout: Of the encoder layers: attention, feed-forward, and before both residual sums.

    Shape:
        (batch, length) of word numbers -> (batch, length, words) of logits.
    """

    positions: Tensor
    causal: Tensor

    def __init__(
        self, words: int, width: int = 200, heads: int = 2, layers: int = 2, length: int = 35, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, heads, width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, words)
        self.register_buffer("positions", sinusoids(length, width), persistent=False)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)
        self._initialize()

    def _initialize(self) -> None:
        """As in the tutorial: the encoder keeps torch's own initialization."""
        for layer in (self.embedding, self.decoder):
            nn.init.uniform_(layer.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        x = self.embedding(words) * math.sqrt(self.embedding.embedding_dim) + self.positions[:length]
        mask = self.causal[:length, :length]
        logits: Tensor = self.decoder(self.encoder(x, mask, is_causal=True))
        return logits


def sinusoids(length: int, width: int) -> Tensor:
    """Position t in dimensions 2i and 2i + 1: sin and cos of t / 10000^(2i / width); (length, width)."""
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angle = torch.arange(length)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], 2).flatten(1)


@dataclass(frozen=True)
class Method:
    """A way to regularize the encoder layers."""

    # "masks" on every weight matrix of the encoder layers, entry by entry; "unit masks" are what `mrreg.swap_dropout`
    # makes of these layers' dropout, rescaled as dropout is; "thin" is `mrreg.thin`
    kind: Literal["SGD", "dropout", "masks", "unit masks", "thin"] = "SGD"
    p: float | None = 0.0  # probability of being dropped, or of being slow; None is the default of `mrreg.thin`
    k: int = 5  # steps of a cycle of masks
    boost: float | None = None  # h_S / h_F; None is k, as in the paper
    momentum: float = 0.9  # of SGD


def network(method: Method, words: int, width: int = 200) -> nn.Module:
    """Return the model, with dropout, masks or thin units in its encoder layers."""
    p = method.p or 0.0
    dropout = p if method.kind in ("dropout", "unit masks") else 0.0
    model: nn.Module = LanguageModel(words, width, layers=LAYERS, length=LENGTH, dropout=dropout)
    example = torch.randint(words, (2, LENGTH))
    if method.kind == "thin":
        return mrreg.thin(model, method.p, method.k, example, boost=method.boost)[0]
    boost = method.k if method.boost is None else method.boost
    if method.kind == "unit masks":
        return mrreg.swap_dropout(model, method.k, example, rescale=True, boost=boost)[0]
    if method.kind == "masks":
        patterns = {f"encoder.layers.{layer}": p for layer in range(LAYERS)}
        return mrreg.mask(model, patterns, method.k, boost=boost)
    return model
