"""Data-parallel and sharded training: what is refused, and what lies on this rank."""
