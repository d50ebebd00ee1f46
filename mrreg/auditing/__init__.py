"""Measure before training what multirate training would save."""

from mrreg.auditing.run import Audit, audit

__all__ = ["Audit", "audit"]
