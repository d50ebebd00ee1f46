"""Many seeds at once: their layers in one batched product, their random numbers from a generator each."""

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


class Generators:
    """A generator for each seed, saved and restored together as if they were one."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.each = [torch.Generator().manual_seed(seed) for seed in seeds]

    def permutations(self, size: int) -> Tensor:  # (S, size)
        """Return a random order for each seed."""
        return torch.stack([torch.randperm(size, generator=generator) for generator in self.each])

    def get_state(self) -> list[Tensor]:
        return [generator.get_state() for generator in self.each]

    def set_state(self, states: Sequence[Tensor]) -> None:
        for generator, state in zip(self.each, states, strict=True):
            generator.set_state(state)
