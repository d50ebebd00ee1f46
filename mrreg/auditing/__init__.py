"""What multirate training would save, measured before training."""

from mrreg.auditing.run import Audit, audit

__all__ = ["Audit", "audit"]
