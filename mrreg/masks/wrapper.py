"""A module around another one that answers for it: its attributes, its items, and its state dict."""

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from mrreg.masks.functional_call import true_parameters


class Wrapper(nn.Module):
    """Around `module`, which a subclass sets last in its constructor: what it does not have is looked for in there."""

    module: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self._reports: tuple[str, tuple[list[str], ...]] = "", ()  # of a load that is going on
        self.register_load_state_dict_post_hook(_plain_names)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # not set yet: while it is unpickled, or when __init__ failed
                raise
            return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        """A layer of a wrapped container, as in `model[0]` after `swap_dropout` of a Sequential."""
        return self.module[key]  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        """Over a wrapped container."""
        return iter(self.module)  # type: ignore[call-overload, no-any-return]

    def __len__(self) -> int:
        """The length of a wrapped container."""
        return len(self.module)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        """As the module's: of a layer it is true."""
        return bool(self.module)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is read from the module is also set there."""
        module = self.__dict__.get("_modules", {}).get("module")
        own = module is None or name == "module" or name in self.__dict__ or hasattr(type(self), name)
        if own or not hasattr(module, name):
            super().__setattr__(name, value)
        else:
            setattr(module, name, value)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The plain module's state dict."""
        with true_parameters():
            return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state dict of the plain module."""
        with true_parameters():
            return self.module.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Inside another module, torch looks for the plain module's keys under "module.": put them there."""
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[f"{prefix}module.{key.removeprefix(prefix)}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._reports = prefix, args[-3:]


def _plain_names(wrapper: Wrapper, _: object) -> None:
    """What a load reports (missing keys, unexpected keys, errors) names the plain module's keys."""
    prefix, reports = wrapper._reports
    inner = re.compile(rf"(?<![\w.]){re.escape(prefix)}module\.")
    for report in reports:
        report[:] = [inner.sub(prefix, text) for text in report]
    wrapper._reports = "", ()
