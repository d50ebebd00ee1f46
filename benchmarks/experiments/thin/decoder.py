"""A small character-level decoder of torch's own layers."""

import torch
from torch import Tensor, nn


class Decoder(nn.Module):
    """Embedding and learned positions, causal layers of torch with normalization first, a linear head.

    Args:
        characters: How many different ones.
        width: Of the residual stream; the hidden layers are four times as wide.
        heads: Of each attention.
        layers: Of attention and hidden layer.
        length: The longest sequence.
        dropout: At the usual places: embedding, attention, hidden units, before both residual sums.

    Shape:
        (batch, length) of character numbers -> (batch, length, characters) of logits.
    """

    causal: Tensor

    def __init__(
        self, characters: int, width: int, heads: int, layers: int, length: int = 64, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        for weight in (self.embedding.weight, self.positions):
            nn.init.normal_(weight, std=0.1)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of the next character at every place."""
        length = x.shape[1]
        h = self.dropout(self.embedding(x) + self.positions[:length])
        for layer in self.layers:
            h = layer(h, self.causal[:length, :length], is_causal=True)
        logits: Tensor = self.head(self.norm(h))
        return logits
