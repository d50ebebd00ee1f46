"""Thin sub-networks: which units of a model can be absent together, how many are, and what that saves."""
