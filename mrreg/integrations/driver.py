"""Common base of the callbacks: one attachment, renewed where a trainer makes new optimizers."""

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from mrreg.errors import check_int
from mrreg.masks.attach import Attachment, attach


class MaskDriver:
    """Attaches the optimizers of a trainer to the masks of its model, once for each set of optimizers.

    Args:
        seed: Chooses the slow subsets; a resumed optimizer brings its own.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = check_int("MultirateCallback", "seed", seed, least=0)
        self.handle: Attachment | None = None
        self._optimizers: list[Optimizer] = []

    def drive(self, optimizers: Iterable[Optimizer], model: nn.Module) -> None:
        """Attach; optimizers that go on where an earlier training of the same trainer ended keep their clock."""
        found = list(optimizers)
        if self.handle is not None:
            if list(map(id, found)) == list(map(id, self._optimizers)):
                return
            self.handle.remove()
        self.handle, self._optimizers = attach(found, model, self.seed), found
