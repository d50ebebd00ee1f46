"""The networks whose thin training is timed, each with one batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 30522


def mlp(p: float, widths: tuple[int, ...] = (784, 1000, 1000, 10)) -> nn.Module:
    """Linear layers with ReLU, and dropout before all but the first."""
    layers: list[nn.Module] = []
    for place, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.ReLU(), nn.Dropout(p)] * (place > 0) + [nn.Linear(inputs, outputs)]
    return nn.Sequential(*[layer for layer in layers if p or not isinstance(layer, nn.Dropout)])


class EncoderBlock(nn.Module):
    """Attention and a feed-forward half, each behind a LayerNorm and beside a residual sum."""

    def __init__(self, p: float, width: int = 256, hidden: int = 1024, heads: int = 8) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.p = p
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, -1, self.head_dim))
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, head_dim)
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.up(self.norm2(x)))
        narrow: Tensor = self.down(F.dropout(hidden, self.p, self.training) if self.p else hidden)
        return x + narrow


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm and a residual sum."""

    def __init__(self, p: float, channels: int = 64) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout2d(p) if p else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the same shape."""
        y = self.dropout(F.relu(self.norm1(self.conv1(x))))
        return F.relu(x + self.norm2(self.conv2(y)))


def bert(p: float) -> nn.Module:
    """Build an encoder of four layers of width 256 with random weights."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=p,
        attention_probs_dropout_prob=p,
        vocab_size=VOCABULARY,
    )
    return BertModel(config)


@dataclass(frozen=True)
class Network:
    """How it is built, for a dropout probability, and its batch."""

    build: Callable[[float], nn.Module]
    inputs: Callable[[], Tensor]


NETWORKS = {
    "8-16-16-4": Network(partial(mlp, widths=(8, 16, 16, 4)), lambda: torch.randn(8, 8)),
    "784-1000-1000-10, batch 128": Network(mlp, lambda: torch.randn(128, 784)),
    "784-1000-1000-10, batch 512": Network(mlp, lambda: torch.randn(512, 784)),
    "encoder block 256/1024": Network(EncoderBlock, lambda: torch.randn(16, 128, 256)),
    "nn.TransformerEncoderLayer": Network(
        lambda p: nn.TransformerEncoderLayer(256, 8, 1024, p, batch_first=True), lambda: torch.randn(16, 128, 256)
    ),
    "two ResNet blocks of 64": Network(
        lambda p: nn.Sequential(ResidualBlock(p), ResidualBlock(p)), lambda: torch.randn(16, 64, 32, 32)
    ),
    "BERT 4 x 256": Network(bert, lambda: torch.randint(VOCABULARY, (16, 64))),
}
