"""Masks that hold random weights at zero for most of a cycle, and what drives them."""

import torch

from mrreg.masks.attach import Attachment, attach
from mrreg.masks.attention import MultiheadAttention
from mrreg.masks.blocks import BlockForward
from mrreg.masks.groups import AttributeOverride, Block, Slot, UnitGroup
from mrreg.masks.install import MultirateMask, rebuild_masked, rebuild_with_mask
from mrreg.masks.layers import MaskTarget, UnitLayout
from mrreg.masks.mask import Mask

__all__ = ["Attachment", "MultirateMask", "attach"]

# what a pickled mask names, so that `torch.load` of a whole model needs nothing of ours to be allowed
torch.serialization.add_safe_globals([Mask, MaskTarget, UnitLayout, UnitGroup, Slot, AttributeOverride])
torch.serialization.add_safe_globals([MultiheadAttention, rebuild_masked, rebuild_with_mask])
torch.serialization.add_safe_globals([Block, BlockForward])
