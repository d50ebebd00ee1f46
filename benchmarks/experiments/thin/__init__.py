"""Thin sub-networks beside dropout and other regularizers."""
