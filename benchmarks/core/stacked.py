"""Layers for many seeds at once."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class StackedLinear(nn.Module):
    """As many linear layers as there are seeds, in one batched product."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))  # (S, out, in)
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]))  # (S, out)

    def forward(self, x: Tensor) -> Tensor:  # (S, N, in) -> (S, N, out)
        """Apply layer s to the batch of seed s."""
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT)
