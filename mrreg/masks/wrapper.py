"""A module around another one that answers for it: its attributes, and its state dict."""

import re
from typing import Any

from torch import nn

from mrreg.masks.functional_call import true_parameters


class Wrapper(nn.Module):
    """Wraps `module`, which a subclass sets last in its constructor, and looks up there what it does not have."""

    module: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self._reports: tuple[str, tuple[list[str], ...]] = "", ()  # of a load that is going on
        self.register_load_state_dict_post_hook(finish_load)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # While it is unpickled, or when __init__ failed, there is no module yet. And a protocol that asks for
            # __deepcopy__ or __reduce__ must not be answered for the module in place of the wrapper.
            if name == "module" or (name.startswith("__") and name.endswith("__")):
                raise
            return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # what is read from the module is also set there
        module = self.__dict__.get("_modules", {}).get("module")
        own = module is None or name == "module" or name in self.__dict__ or hasattr(type(self), name)
        if own or not hasattr(module, name):
            super().__setattr__(name, value)
        else:
            setattr(module, name, value)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the plain module's state dict."""
        with true_parameters():
            return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state dict of the plain module."""
        with true_parameters():
            report = self.module.load_state_dict(*args, **kwargs)
        self._forget_versions()
        return report

    def _forget_versions(self) -> None:
        """Note that parameters were written to legitimately."""
        raise NotImplementedError

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Inside another module, torch looks for the plain module's keys under "module.": put them there.
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[f"{prefix}module.{key.removeprefix(prefix)}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._reports = prefix, args[-3:]


def finish_load(wrapper: Wrapper, _: object) -> None:
    """Name the plain module's keys in what a load reports: missing keys, unexpected keys, errors."""
    prefix, reports = wrapper._reports
    inner = re.compile(rf"(?<![\w.]){re.escape(prefix)}module\.")
    for report in reports:
        report[:] = [inner.sub(prefix, text) for text in report]
    wrapper._reports = "", ()
    wrapper._forget_versions()
