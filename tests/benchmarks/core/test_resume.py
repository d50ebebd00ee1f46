"""A benchmark that is killed at random moments ends with the record of one that nobody has disturbed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
KILLS = 4

# Children are forked from a process that has imported torch already and computed nothing.

# Two trainings of about a second each, saved at every tenth of one.
BENCHMARK = """
from benchmarks.core import checkpoints
from benchmarks.core.comparison import Comparison, evenly
from benchmarks.core.study import Study
from benchmarks.experiments.mnist.tables import PRESETS, build
from benchmarks.experiments.mnist.training import Method

def comparisons(config):
    methods = {"dropout": Method("dropout", (0.2, 0.5)), "masks": Method("masks", (0.2, 0.5))}
    return [Comparison(methods, 1, evenly(400, 5))]

checkpoints.EVERY = 0.1
benchmark = Study("toy", PRESETS, comparisons, build).benchmark()
"""

SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from benchmarks.core import runner as harness

torch.set_num_threads(1)
folder = Path(sys.argv[1])

def child(out):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        harness.run(benchmark, "smoke", out)
        os._exit(0)
    return pid

assert os.waitpid(child(folder / "warm"), 0)[1] == 0  # the first one also reads files and fills caches
begun = time.perf_counter()
assert os.waitpid(child(folder / "undisturbed"), 0)[1] == 0
longest = time.perf_counter() - begun
moments, killed = random.Random(0), 0
for _ in range(int(sys.argv[2])):
    pid = child(folder / "killed")
    time.sleep(moments.uniform(0.02, 0.4) * longest)  # what was finished before is not done again
    os.kill(pid, signal.SIGKILL)
    killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
assert os.waitpid(child(folder / "killed"), 0)[1] == 0
print(killed)
"""


def runs(folder: Path) -> dict[str, Any]:
    """The runs of a record, without times, dates and seconds."""
    (path,) = folder.glob("*.json")
    record = json.loads(path.read_text())
    assert len(record["runs"]) == record["total"]
    return {
        key: [{name: value for name, value in result.items() if "seconds" not in name} for result in run["results"]]
        for key, run in record["runs"].items()
    }


@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", BENCHMARK + SCRIPT, str(tmp_path), str(KILLS)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > 0
    assert runs(tmp_path / "killed") == runs(tmp_path / "undisturbed")
