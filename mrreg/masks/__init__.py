"""Masks that hold random weights at zero for most of a cycle, and what drives them."""

import torch

from mrreg.masks.attach import Attachment, attach
from mrreg.masks.attention import MultiheadAttention
from mrreg.masks.blocks import BlockForward
from mrreg.masks.groups import AttributeOverride, Block, BlockCall, Slot, UnitGroup
from mrreg.masks.install import rebuild_masked, rebuild_with_mask
from mrreg.masks.layer_mask import rebuild_layer_mask
from mrreg.masks.layers import UnitLayout
from mrreg.masks.mask import Mask
from mrreg.masks.module import MultirateMask
from mrreg.masks.targets import MaskTarget

__all__ = ["Attachment", "MultirateMask", "attach"]

# what a pickled mask names, so that `torch.load` of a whole model needs nothing of ours to be allowed
torch.serialization.add_safe_globals([MaskTarget, UnitLayout, rebuild_layer_mask])
torch.serialization.add_safe_globals([Mask, UnitGroup, Slot, AttributeOverride, MultiheadAttention])
torch.serialization.add_safe_globals([rebuild_masked, rebuild_with_mask])
torch.serialization.add_safe_globals([Block, BlockCall, BlockForward])
