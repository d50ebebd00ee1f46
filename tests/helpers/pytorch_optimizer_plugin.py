"""A pytest plugin for the tests of pytorch_optimizer: puts our optimizers into its table, under names of their own."""

from typing import Any

import pytorch_optimizer.optimizer

import mrreg


def _half_slow(params: Any) -> list[dict[str, Any]]:
    """Every second group in a slow part."""
    items = list(params)
    groups = items if items and isinstance(items[0], dict) else [{"params": [p]} for p in items]
    return [{**group, "period": 1 + 2 * (i % 2)} for i, group in enumerate(groups)]


class HalfSlowSGD(mrreg.MultirateSGD):
    """With two parts."""

    def __init__(self, params: Any, lr: Any = 1e-3, weight_decay: float = 0.0, **options: Any) -> None:
        super().__init__(_half_slow(params or []), lr, weight_decay=weight_decay, **{"momentum": 0.9, **options})


class HalfSlowAdamW(mrreg.MultirateAdamW):
    """With two parts."""

    def __init__(self, params: Any, lr: Any = 1e-3, weight_decay: float = 0.0, **options: Any) -> None:
        super().__init__(_half_slow(params or []), lr, weight_decay=weight_decay, **options)


for kind in (mrreg.MultirateSGD, mrreg.MultirateAdamW, HalfSlowSGD, HalfSlowAdamW, mrreg.LangevinSGD):
    pytorch_optimizer.optimizer.OPTIMIZERS[f"mrreg_{kind.__name__}".lower()] = kind
