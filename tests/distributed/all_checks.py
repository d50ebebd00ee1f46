"""Every check that runs on two ranks, in the order of the files."""

from distributed import ddp_checks, fsdp_checks, fsdp_edge_checks, thin_checks  # noqa: F401
from distributed.cases import CHECKS as CHECKS
