"""Thin sub-networks: groups of units that can be absent together, how many are, and the computation that this saves."""
