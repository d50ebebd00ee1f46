"""Multirate training of neural networks for PyTorch.

Fine-tune a network in about half the time with an unchanged training loop (`MultirateSGD`, `MultirateAdamW`,
`Multirate`), and regularize it with masks that hold random weights at zero for most of a cycle (`MultirateMask`,
`attach`).

References:
    Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022.
"""

from mrreg import theory
from mrreg.auditing.audit import Audit, audit
from mrreg.convert.dropout import swap_dropout
from mrreg.convert.wrap import mask, unwrap
from mrreg.errors import NoEffectWarning
from mrreg.masks.attach import attach
from mrreg.masks.install import MultirateMask
from mrreg.optim.langevin import LangevinSGD
from mrreg.optim.multirate import Multirate
from mrreg.optim.param_groups import biases, split
from mrreg.optim.running_statistics import batch_norm
from mrreg.optim.two_scales import MultirateAdamW, MultirateSGD
from mrreg.plotting import plot
from mrreg.thinning.build import thin
from mrreg.thinning.report import ThinReport

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "LangevinSGD",
    "Multirate",
    "MultirateAdamW",
    "MultirateMask",
    "MultirateSGD",
    "NoEffectWarning",
    "ThinReport",
    "attach",
    "audit",
    "batch_norm",
    "biases",
    "mask",
    "plot",
    "split",
    "swap_dropout",
    "theory",
    "thin",
    "unwrap",
]
