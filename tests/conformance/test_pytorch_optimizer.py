"""The tests of pytorch_optimizer, with our optimizers in its table.

They come in its source distribution only: `pip download --no-deps --no-binary :all: pytorch_optimizer`, unpack it, and
let MRREG_PYTORCH_OPTIMIZER name the folder.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LEFT_OUT = {
    "test_learning_rate": "wants an exception class of that library; ours is a ValueError, as torch's",
    "(test_checkpoint_resume and halfslow)": "asks autograd.grad for gradients of parts that are switched off",
}


@pytest.mark.slow
def test_its_tests_pass() -> None:
    folder = os.environ.get("MRREG_PYTORCH_OPTIMIZER")
    if not folder:
        pytest.skip("MRREG_PYTORCH_OPTIMIZER does not name its unpacked source distribution")
    chosen = " and not ".join(["mrreg_", *LEFT_OUT])
    options = ["-q", "-p", "helpers.pytorch_optimizer_plugin", "-p", "no:cacheprovider", "-o", "addopts="]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", chosen, "tests"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert " passed" in run.stdout
    assert "failed" not in run.stdout
