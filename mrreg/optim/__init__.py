"""Optimizers whose parts train at different rates."""

from mrreg.optim.adamw import MultirateAdamW
from mrreg.optim.bn_statistics import batch_norm
from mrreg.optim.langevin import LangevinSGD
from mrreg.optim.multirate import Multirate
from mrreg.optim.param_groups import biases, split
from mrreg.optim.sgd import MultirateSGD

__all__ = [
    "LangevinSGD",
    "Multirate",
    "MultirateAdamW",
    "MultirateSGD",
    "batch_norm",
    "biases",
    "split",
]
