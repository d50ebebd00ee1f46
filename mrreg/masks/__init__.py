"""Masks that hold random weights at zero for most of a cycle, and what drives them."""

import torch

from mrreg.masks.attachment import Attachment, attach
from mrreg.masks.attention import MultiheadAttention
from mrreg.masks.block_forward import BlockForward
from mrreg.masks.layer_mask import rebuild_layer_mask
from mrreg.masks.module import MultirateMask
from mrreg.masks.slots import AttributeOverride, Block, BlockCall, Slot, UnitGroup
from mrreg.masks.targets import MaskTarget
from mrreg.masks.thin_mask import ThinMask
from mrreg.masks.thin_model import rebuild_masked, rebuild_with_mask
from mrreg.masks.unit_layouts import UnitLayout

__all__ = ["Attachment", "MultirateMask", "attach"]

# what a pickled mask names, so that `torch.load` of a whole model needs nothing of ours to be allowed
torch.serialization.add_safe_globals([MaskTarget, UnitLayout, rebuild_layer_mask])
torch.serialization.add_safe_globals([ThinMask, UnitGroup, Slot, AttributeOverride, MultiheadAttention])
torch.serialization.add_safe_globals([rebuild_masked, rebuild_with_mask])
torch.serialization.add_safe_globals([Block, BlockCall, BlockForward])
