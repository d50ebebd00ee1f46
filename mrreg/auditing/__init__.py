"""Measure before training what multirate training would save."""
