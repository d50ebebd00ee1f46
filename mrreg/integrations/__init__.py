"""Callbacks for trainers, one module for each: importing this package imports none of them."""

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from mrreg.errors import check_int
from mrreg.masks.attach import Attachment, attach


class MaskDriver:
    """Base of the callbacks: attaches the optimizers of a trainer to the masks of its model.

    The position in the cycle is saved with the optimizers, so that training resumes exactly in mid-cycle, and what the
    trainer saves of the model is the checkpoint of the plain one. `callback.handle` is what `mrreg.attach` returns:
    print it, log its `state()`, `remove()` it.

    Args:
        seed: Chooses the slow subsets, at least 0; a resumed optimizer brings its own.
        joint: As in `mrreg.attach`.

    Raises:
        ValueError: When training begins, if the model has no mask, or masked parameters are in no optimizer.
    """

    def __init__(self, seed: int = 0, joint: bool = True) -> None:
        self.seed = check_int("MultirateCallback", "seed", seed, least=0)
        self.joint = joint
        self.handle: Attachment | None = None
        self._optimizers: list[Optimizer] = []

    def _drive(self, optimizers: Iterable[Optimizer], model: nn.Module) -> None:
        """Attach; optimizers that go on where an earlier training of the same trainer ended keep their clock."""
        found = list(optimizers)
        if list(map(id, found)) != list(map(id, self._optimizers)):
            self.handle, self._optimizers = attach(found, model, self.seed, joint=self.joint), found
