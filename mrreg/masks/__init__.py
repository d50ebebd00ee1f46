"""Masks that hold random weights at zero for most of a cycle, and what drives them."""

from mrreg.masks.attach import Attachment, attach
from mrreg.masks.install import MultirateMask

__all__ = ["Attachment", "MultirateMask", "attach"]
