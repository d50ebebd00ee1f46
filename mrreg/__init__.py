"""Multirate training of neural networks for PyTorch.

Fine-tune a network in about half the time with an unchanged training loop (`MultirateSGD`, `MultirateAdamW`,
`Multirate`), and regularize it with masks that hold random weights at zero for most of a cycle (`MultirateMask`,
`attach`).

References:
    Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022.
"""

from mrreg import theory
from mrreg.attach import attach
from mrreg.audit import Audit, audit
from mrreg.convert import mask, unwrap
from mrreg.dropout import swap_dropout
from mrreg.errors import NoEffectWarning
from mrreg.forms import MultirateAdamW, MultirateSGD
from mrreg.langevin import LangevinSGD
from mrreg.mask import MultirateMask
from mrreg.norm import batch_norm
from mrreg.optim import Multirate
from mrreg.schedule import PeriodScheduler
from mrreg.split import biases, split

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "LangevinSGD",
    "Multirate",
    "MultirateAdamW",
    "MultirateMask",
    "MultirateSGD",
    "NoEffectWarning",
    "PeriodScheduler",
    "attach",
    "audit",
    "batch_norm",
    "biases",
    "mask",
    "split",
    "swap_dropout",
    "theory",
    "unwrap",
]
