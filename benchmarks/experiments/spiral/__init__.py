"""Spiral."""
