"""The word-level language model of PyTorch's own transformer tutorial."""

import math

import torch
from torch import Tensor, nn


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
