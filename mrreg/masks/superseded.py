"""What an optimizer says whose masks another one has taken over."""

import warnings
from typing import Any

from torch.optim import Optimizer

from mrreg.errors import NoEffectWarning

WHERE = "attach"


class Superseded:
    """Hook on an optimizer whose masks another one drives now: warns at its next step."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:  # noqa: D102
        if not self._told:
            self._told = True
            problem = f"this {type(optimizer).__name__} steps, but another optimizer drives its masks now"
            warnings.warn(f"{WHERE}: {problem}. Attach it again to use it.", NoEffectWarning, stacklevel=3)


def forget_superseded(optimizer: Any) -> None:
    """Remove the warning of an optimizer that is attached again."""
    hooks = optimizer._optimizer_step_pre_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, Superseded)]:
        del hooks[key]
