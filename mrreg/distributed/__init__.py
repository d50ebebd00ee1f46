"""Data-parallel and sharded training: what is sent, what is refused, what lies on this rank."""

from mrreg.distributed.communication import reduce_due

__all__ = ["reduce_due"]
