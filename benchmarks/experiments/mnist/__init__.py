"""Mnist."""
