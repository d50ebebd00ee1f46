"""Masks and thin networks in Lightning."""

from typing import Any

from mrreg.integrations.driver import MaskDriver

try:
    from lightning.pytorch import Callback
except ImportError as error:
    message = "mrreg.integrations.lightning needs lightning, which cannot be imported: pip install lightning"
    raise ImportError(message) from error


class MultirateCallback(MaskDriver, Callback):
    """Let the optimizers of a LightningModule drive its masks.

    The module has masks (`mrreg.mask`, `mrreg.swap_dropout`) or a thin network (`mrreg.thin`) somewhere inside. The
    position in the cycle is saved with the optimizers, so that `fit(..., ckpt_path=...)` resumes exactly in mid-cycle,
    and the checkpoint's "state_dict" is that of the plain module.

    Args:
        seed: Chooses the slow subsets, at least 0; a resumed optimizer brings its own.

    Raises:
        ValueError: When `fit` begins, if the module has no mask, or masked parameters are in no optimizer.

    Example:
        >>> import lightning
        >>> from mrreg.integrations.lightning import MultirateCallback
        >>> def trainer():
        ...     return lightning.Trainer(max_steps=100, callbacks=[MultirateCallback(seed=1)])

    Note:
        `callback.handle` is what `mrreg.attach` returns: print it, log its `state()`, `remove()` it.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach the optimizers, before a checkpoint is loaded into them."""
        self.drive(trainer.optimizers, pl_module)
