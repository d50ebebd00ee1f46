"""Small networks for images at 16 x 16, with dropout or stochastic depth where it belongs."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock
from torchvision.ops import StochasticDepth

from benchmarks.experiments.thin.draws import CLASSES, SIZE

PATCH = 4


class VisionTransformer(nn.Module):
    """Patches, layers of torch with normalization first, the mean over patches, a linear head.

    Shape:
        (batch, 3, 16, 16) -> (batch, classes)
    """

    def __init__(self, width: int, heads: int, layers: int, dropout: float = 0.0, depth: float = 0.0) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, PATCH, PATCH)
        self.positions = nn.Parameter(torch.empty((SIZE // PATCH) ** 2, width))
        nn.init.normal_(self.positions, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        if depth:
            for place, layer in enumerate(self.layers, start=1):  # more of the later ones, as is usual
                layer.dropout1 = layer.dropout2 = StochasticDepth(depth * place / layers, "row")
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        h = self.dropout(self.patch(x).flatten(2).transpose(1, 2) + self.positions)
        for layer in self.layers:
            h = layer(h)
        logits: Tensor = self.head(self.norm(h).mean(1))
        return logits


def resnet(width: int, blocks: int, dropout: float = 0.0, depth: float = 0.0) -> nn.Sequential:
    """Return two stages of residual blocks, the second twice as wide, after a convolution of stride 2."""
    widths = [width] * (blocks + 1) + [2 * width] * blocks
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for place, (before, after) in enumerate(pairwise(widths), start=1):
        stride = after // before
        short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        block = BasicBlock(before, after, stride, short if stride > 1 else None)
        if dropout:
            block.bn1 = nn.Sequential(block.bn1, nn.Dropout2d(dropout))
        if depth:  # more of the later ones, as is usual
            block.bn2 = nn.Sequential(block.bn2, StochasticDepth(depth * place / (2 * blocks), "row"))
        layers.append(block)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES))
