"""Checks of the arguments that a mask is built from."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mrreg.distributed.checks import SHARD_OUTSIDE, is_fully_sharded
from mrreg.errors import check_int, check_number, invalid_argument
from mrreg.masks.install import check_own_forward
from mrreg.masks.mask import masks_of
from mrreg.masks.targets import STRUCTURES
from mrreg.module_utils import check_materialized, check_torch_layers

WHERE = "MultirateMask"


def _check_bool(rescale: object) -> bool:
    if not isinstance(rescale, bool):
        raise invalid_argument(TypeError, WHERE, "rescale", "True or False", rescale)
    return rescale


CHANGEABLE: dict[str, Callable[[Any], Any]] = {  # options that may change while training, with their check
    "p": lambda p: check_number(WHERE, "p", p, "in [0, 1]", lambda p: 0 <= p <= 1),
    "k": lambda k: check_int(WHERE, "k", k),
    "rescale": _check_bool,
}


def check_structure(structure: object) -> None:
    """Refuse a structure that does not exist."""
    if not isinstance(structure, str) or structure not in STRUCTURES:
        kind = ValueError if isinstance(structure, str) else TypeError
        raise invalid_argument(kind, WHERE, "structure", f"one of {', '.join(map(repr, STRUCTURES))}", structure)


def check_module(module: object) -> None:
    """Refuse an object that is no module, has no shape yet, or contains something that a mask cannot be around."""
    if not isinstance(module, nn.Module):
        raise invalid_argument(TypeError, WHERE, "module", "an nn.Module", module)
    check_torch_layers(WHERE, "module", module)
    check_materialized(WHERE, "module", module)
    check_own_forward(WHERE, "module", module)
    for name, inner in module.named_modules():
        if isinstance(inner, torch.jit.ScriptModule):
            rule, remedy = "without scripted modules inside", "They read their parameters where nothing can stand in."
            raise invalid_argument(ValueError, WHERE, "module", rule, name or type(inner).__name__, remedy)
        if is_fully_sharded(inner):
            rule = "without fully_shard inside"
            raise invalid_argument(ValueError, WHERE, "module", rule, name or type(inner).__name__, SHARD_OUTSIDE)
        if masks_of(inner):
            rule = "without masks inside"
            raise invalid_argument(ValueError, WHERE, "module", rule, name or WHERE, "Masks do not nest.")
