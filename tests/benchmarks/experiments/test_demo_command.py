"""The demo in its short form, with nothing but the packages of the extra `demo`."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.core import records
from benchmarks.experiments import demo

ROOT = Path(__file__).parents[3]

BARE = """
import runpy, sys
for name in ("torchvision", "transformers", "hypothesis", "pytest"):
    sys.modules[name] = None
sys.argv = ["benchmarks", "demo", "--preset", "smoke", "--out", sys.argv[1]]
runpy.run_module("benchmarks", run_name="__main__")
"""


def test_the_demo_runs_and_prints_where_its_report_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.run(tmp_path, "smoke")
    printed = capsys.readouterr().out
    report = tmp_path / "report.html"
    assert printed.splitlines()[-1] == f"Report: {report}"
    text = report.read_text()
    assert text.count("data:image/svg+xml") >= 4
    assert "http" not in text.replace("http://www.w3.org", "")
    for method in demo.METHODS:
        assert method in text
        assert method in printed
    assert "95 % interval" in printed
    record = records.load(tmp_path / "demo-smoke.json")
    assert len(record.runs) == record.total == 4 * 6 + 4 * 3


@pytest.mark.slow
def test_the_demo_needs_its_own_extra_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BARE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
