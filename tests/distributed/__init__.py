"""Checks that run on two ranks."""
