"""Optimizers whose parts train at different rates."""
