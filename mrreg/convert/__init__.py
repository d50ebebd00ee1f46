"""Put masks into existing models, and take them out."""

from mrreg.convert.dropout import swap_dropout
from mrreg.convert.wrap import mask, unwrap

__all__ = ["mask", "swap_dropout", "unwrap"]
