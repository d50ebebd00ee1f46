"""Masks and thin networks in Lightning."""

from typing import Any

from mrreg.integrations import MaskDriver

try:
    from lightning.pytorch import Callback
except ImportError as error:
    message = "mrreg.integrations.lightning needs lightning, which cannot be imported: pip install lightning"
    raise ImportError(message) from error


class MultirateCallback(MaskDriver, Callback):
    """Let the optimizers of a LightningModule drive the masks, or the thin network, somewhere inside it.

    See `mrreg.integrations.MaskDriver` for `seed`, `handle` and errors; `fit(..., ckpt_path=...)` resumes.

    Example:
        >>> import lightning
        >>> from mrreg.integrations.lightning import MultirateCallback
        >>> def trainer():
        ...     return lightning.Trainer(max_steps=100, callbacks=[MultirateCallback(seed=1)])
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach the optimizers, before a checkpoint is loaded into them."""
        self._drive(trainer.optimizers, pl_module)
