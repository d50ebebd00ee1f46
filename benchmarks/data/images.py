"""Images with labels, split for a search, a comparison and a test."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from benchmarks.core.errors import UserError


@dataclass(frozen=True)
class Images:
    """Images to train on, and to evaluate on, with their labels."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def to(self, device: torch.device) -> Self:
        return replace(self, **{name: getattr(self, name).to(device) for name in ("x", "y", "test_x", "test_y")})

    def validation(self, size: int) -> Self:
        """Return the last training images in the place of the test images, which are then not seen at all."""
        kept = len(self.y) - size
        return replace(self.without_last(size), test_x=self.x[kept:], test_y=self.y[kept:])

    def without_last(self, size: int) -> Self:
        """Return the same without the last training images, kept for validation."""
        kept = len(self.y) - size
        return replace(self, x=self.x[:kept], y=self.y[:kept])

    def held_out(self, size: int, prepare: Callable[[Tensor], Tensor] = lambda x: x) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images to evaluate on, so many at a time."""
        for x, y in zip(torch.split(self.test_x, size), torch.split(self.test_y, size), strict=True):
            yield prepare(x), y

    def drawn(self, count: int | None, generator: torch.Generator) -> Self:
        """Return a random choice of the training images; all, in their order, if None.

        Raises:
            UserError: If there are not that many.
        """
        if count is None:
            return self
        if count > len(self.y):
            raise UserError(f"images must be at most {len(self.y)}, which are there, got {count}.")
        index = torch.randperm(len(self.y), generator=generator)[:count].to(self.y.device)
        return replace(self, x=self.x[index], y=self.y[index])
