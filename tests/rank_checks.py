"""Every check that runs on two ranks, in the order of the files."""

import ddp_checks  # noqa: F401
import fsdp_checks  # noqa: F401
import fsdp_edge_checks  # noqa: F401
import readme_checks  # noqa: F401
from distributed_cases import CHECKS as CHECKS
