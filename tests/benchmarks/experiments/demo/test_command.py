"""The demo in its short form, with nothing but the packages of the extra `demo`."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.core import records
from benchmarks.experiments.demo import command, finetune, thin

ROOT = Path(__file__).parents[4]

BARE = """
import runpy, sys
for name in ("torchvision", "transformers", "hypothesis", "pytest"):
    sys.modules[name] = None
sys.argv = ["benchmarks", "demo", "--preset", "smoke", "--out", sys.argv[1]]
runpy.run_module("benchmarks", run_name="__main__")
"""


def test_the_demo_ends_with_three_sentences_and_the_path_of_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.run(tmp_path, "smoke")
    *_, first, second, third, last = capsys.readouterr().out.splitlines()
    report = tmp_path / "report.html"
    assert last == f"Report: {report}"
    assert first.startswith("Thin training reached the accuracy of dropout")
    assert second.startswith("Multirate fine-tuning reached the accuracy of full fine-tuning")
    assert third.startswith("Multirate training reached the accuracy of SGD")
    assert all("95 % interval" in sentence for sentence in (first, second, third))
    text = report.read_text()
    assert text.count('<article class="card">') == 3
    assert "http" not in text.replace("http://www.w3.org", "")
    for method in (*thin.METHODS, *finetune.METHODS):
        assert method in text
    record = records.load(tmp_path / "demo-thin-smoke.json")
    assert len(record.runs) == record.total == 1 + 2 * 2 + 2 * 3


@pytest.mark.slow
def test_the_demo_needs_its_own_extra_alone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BARE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
