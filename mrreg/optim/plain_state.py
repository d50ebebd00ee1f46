"""Saved states of base optimizers, brought into the form of a `Multirate` over the same parameters."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from mrreg.optim.drift import Group

FIXED_OPTIONS = ("period", "initial_period", "phase", "gradient", "drift", "slow_lr")  # a plain state lacks them

Layout = list[list[Tensor]]  # the parameters of each group, in order


def adapt_plain_state(saved: dict[str, Any], groups: list[Group], layouts: Iterable[Layout]) -> dict[str, Any]:
    """Return a plain state divided as the groups are; any other state as it is.

    Optimizers are saved without names, so a state belongs to the first of the layouts whose groups have its sizes.
    """
    if any("clock" in group for group in saved["param_groups"]):
        return saved
    plain = [{k: v for k, v in group.items() if k not in FIXED_OPTIONS} for group in saved["param_groups"]]
    sizes = [len(group["params"]) for group in plain]
    if sizes == [len(group["params"]) for group in groups]:
        return {**saved, "param_groups": plain}
    for layout in layouts:
        if sizes == [len(params) for params in layout]:
            return _divide(saved["state"], plain, groups, layout)
    return saved


def _divide(state: dict[Any, Any], plain: list[Group], groups: list[Group], layout: Layout) -> dict[str, Any]:
    """Give every group the keys of its parameters and the options of the plain group that they come from."""
    source = {
        p: (key, options)
        for options, params in zip(plain, layout, strict=True)
        for p, key in zip(params, options["params"], strict=True)
    }
    divided = []
    for group in groups:
        keys, options = zip(*(source[p] for p in group["params"]), strict=True)
        divided.append({**options[0], "params": list(keys)})
        divided[-1].pop("param_names", None)
    kept = {key for group in divided for key in group["params"]}
    return {"state": {key: value for key, value in state.items() if key in kept}, "param_groups": divided}
