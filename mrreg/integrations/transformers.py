"""Masks and thin networks in the Hugging Face Trainer."""

from typing import Any

from mrreg.integrations.driver import MaskDriver

try:
    from transformers import TrainerCallback
except ImportError as error:
    message = "mrreg.integrations.transformers needs transformers, which cannot be imported: pip install transformers"
    raise ImportError(message) from error


class MultirateCallback(MaskDriver, TrainerCallback):
    """Let the Trainer's optimizer, whichever it makes, drive the masks of its model.

    Give the Trainer a model with masks (`mrreg.mask`, `mrreg.swap_dropout`) or a thin one (`mrreg.thin`) and this
    callback. The position in the cycle is saved with the optimizer, so that training resumes exactly in mid-cycle, and
    `save_pretrained` writes the checkpoint of the plain model.

    Args:
        seed: Chooses the slow subsets, at least 0; a resumed optimizer brings its own.

    Raises:
        ValueError: When training begins, if the model has no mask, or masked parameters are not in the optimizer.

    Example:
        >>> import transformers
        >>> from mrreg.integrations.transformers import MultirateCallback
        >>> def trainer(model, arguments, data):
        ...     return transformers.Trainer(model, arguments, train_dataset=data, callbacks=[MultirateCallback(seed=1)])

    Note:
        `callback.handle` is what `mrreg.attach` returns: print it, log its `state()`, `remove()` it.
    """

    def on_train_begin(self, *_: Any, model: Any = None, optimizer: Any = None, **_more: Any) -> None:
        """Attach the optimizer, which a resumed training has loaded by now."""
        self.drive([optimizer], model)
