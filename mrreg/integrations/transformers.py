"""Masks and thin networks in the Hugging Face Trainer."""

from typing import Any

from mrreg.integrations import MaskDriver

try:
    from transformers import TrainerCallback
except ImportError as error:
    message = "mrreg.integrations.transformers needs transformers, which cannot be imported: pip install transformers"
    raise ImportError(message) from error


class MultirateCallback(MaskDriver, TrainerCallback):
    """Let the Trainer's optimizer, whichever it makes, drive the masks of its model, or a thin model.

    See `mrreg.integrations.MaskDriver` for `seed`, `handle` and errors.

    Example:
        >>> import transformers
        >>> from mrreg.integrations.transformers import MultirateCallback
        >>> def trainer(model, arguments, data):
        ...     return transformers.Trainer(model, arguments, train_dataset=data, callbacks=[MultirateCallback(seed=1)])
    """

    def on_train_begin(self, *_: Any, model: Any = None, optimizer: Any = None, **_more: Any) -> None:
        """Attach the optimizer, which a resumed training has loaded by now."""
        self._drive([optimizer], model)
