"""The command line as a user types it: every benchmark, a crash, missing data, the report."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core import records
from benchmarks.core.registry import REGISTERED, Entry
from benchmarks.core.runner import Context, Run
from benchmarks.report import pages
from benchmarks.report.paper import ITEMS

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process: importing torch anew for each call would take most of the time."""
    monkeypatch.setenv("TERMINAL_WIDTH", "200")

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Done(code, *capsys.readouterr())

    return call


def needs_data(name: str, output: str) -> bool:
    """Whether a benchmark stopped because its real data are not there, and said so in one line."""
    return "--data-dir or MRREG_DATA" in output and output.count("error:") == 1 and "Traceback" not in output


# those of regularizers are one program, which the demo runs too; test_regularizers.py trains each of them
SMALL = [name for name in REGISTERED if not name.startswith("regularizers-")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_benchmark_runs_in_its_small_form(command: Command, name: str, tmp_path: Path) -> None:
    done = command(*name.split(), "--preset", "smoke", "--out", str(tmp_path))
    if done.returncode and "MRREG_DATA" not in os.environ and needs_data(name, done.stderr):
        pytest.skip("MRREG_DATA does not name a folder with real data")
    assert done.returncode == 0, done.stderr
    record = records.load(records.path_of(tmp_path, name, "smoke"))
    assert len(record.runs) == record.total > 0
    *_, data, last = done.stdout.splitlines()
    assert data.startswith(f"{name} smoke: trained on ")
    assert last.startswith(f"{name} smoke: {record.total} of {record.total} runs are in")
    for section in REGISTERED[name].load().sections:
        assert pages.block(section, record).title == section.title  # with its plots


def test_runs_of_every_preset_have_names_of_their_own() -> None:
    for entry in REGISTERED.values():
        benchmark = entry.load()
        for config in benchmark.presets.values():
            keys = [run.key for run in benchmark.runs(config)]
            assert len(set(keys)) == len(keys) > 0
            assert benchmark.data_of(config)
        assert {section.item for section in benchmark.sections} <= {*ITEMS, ""}


def test_list_names_every_benchmark_and_its_presets(command: Command) -> None:
    done = command("list")
    assert done.returncode == 0, done.stderr
    for line, (name, entry) in zip(done.stdout.splitlines(), REGISTERED.items(), strict=True):
        assert line.startswith(name)
        assert entry.summary in line
        assert "smoke" in line


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["spiral", "--preset", "huge"], 1, "error: spiral: preset must be one of smoke"),
        (["spiral", "--preset", "smoke", "--device", "toaster"], 1, "error: device must be one that torch knows"),
        (
            ["spiral", "--preset", "smoke", "--data-dir", "nowhere"],
            1,
            "error: data-dir must be a folder, got 'nowhere'",
        ),
        (["spirall"], 2, "spiral"),
        (["spiral", "--seeds", "0"], 2, "--seeds"),
        (["speed", "nothing"], 2, "nothing"),
        (["all", "--preset", "smoke", "--budget", "-1"], 2, "--budget"),
        (["all", "--preset", "huge"], 2, "'huge'"),
    ],
)
def test_wrong_calls_are_one_clear_message(
    command: Command, arguments: list[str], code: int, said: str, tmp_path: Path
) -> None:
    done = command(*arguments, "--out", str(tmp_path))
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def replaced(monkeypatch: pytest.MonkeyPatch, execute: Any) -> None:
    """Let the runs of the spiral do something else."""
    benchmark = replace(REGISTERED["spiral"].load(), execute=execute)
    monkeypatch.setattr(Entry, "load", lambda self: benchmark)


def test_a_package_that_is_missing_in_the_middle_is_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replaced(monkeypatch, lambda *_: importlib.import_module("no_such_package"))
    done = command("spiral", "--preset", "smoke", "--out", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "error: spiral: needs no_such_package. Install it: pip install '.[bench]'\n"


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def execute(config: Any, run: Run, context: Context) -> list[dict[str, float]]:
        if len(context.record.runs) == 2:
            raise KeyboardInterrupt
        return [{"accuracy": 1.0} for _ in run.seeds]

    replaced(monkeypatch, execute)
    done = command("spiral", "--preset", "smoke", "--out", str(tmp_path))
    path = tmp_path / "spiral-smoke.json"
    assert done.returncode == 130
    said = f"stopped: 2 of 18 runs are kept in {path}. The same command goes on from there."
    assert done.stderr.splitlines()[-1] == said
    assert len(records.load(path).runs) == 2


def test_all_reports_a_failure_and_says_so_by_its_exit_code(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replaced(monkeypatch, lambda config, run, context: [{"accuracy": 1.0}])
    monkeypatch.setattr("benchmarks.__main__.REGISTERED", {"first": REGISTERED["ptb"], "spiral": REGISTERED["spiral"]})
    (tmp_path / "spiral-smoke.json").write_text("broken")
    done = command("all", "--preset", "smoke", "--out", str(tmp_path))
    assert done.returncode == 1
    assert all(f"FAILED {name}: UserError" in done.stderr for name in ("first", "spiral"))
    assert (tmp_path / "spiral-smoke.json").read_text() == "broken"
    (tmp_path / "spiral-smoke.json").unlink()
    assert (
        "stopped at the budget" in command("all", "--preset", "smoke", "--budget", "0", "--out", str(tmp_path)).stdout
    )
    assert command("all", "--preset", "smoke", "--out", str(tmp_path)).returncode == 0
    assert "spiral: has no preset gpu, left out" in command("all", "--preset", "gpu", "--out", str(tmp_path)).stdout


def test_the_report_of_an_empty_folder_is_one_line(command: Command, tmp_path: Path) -> None:
    done = command("report", "--records", str(tmp_path), "--out", str(tmp_path / "new"))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {tmp_path}: there is no record in this folder. Run a benchmark: python -m benchmarks list"
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_report_writes_the_page_and_the_documentation(command: Command, tmp_path: Path) -> None:
    records.Record("biases", "smoke", {}, "cpu", 1, {"torch": "x", "mrreg": "x"}).save(tmp_path / "biases-smoke.json")
    done = command("report", "--records", str(tmp_path), "--out", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    written = ("report.html", "numbers.csv", "results.md", "results.svg", "when-it-helps.svg")
    assert done.stdout.splitlines() == [str(tmp_path / "new" / name) for name in written]


def test_a_record_without_its_benchmark_is_a_closed_question(command: Command, tmp_path: Path) -> None:
    record = records.Record("nobody", "cpu", {}, "cpu", 1, {"torch": "x", "mrreg": "x"}, answer=["Nothing was gained."])
    results: list[Any] = [{"accuracy": 90.0, "curve": [1.0, 2.0], "one": [1.0]}, {"accuracy": 92.0}]
    record.add("a", "a method", (0, 1), 1.0, list(results))
    record.runs["a"]["commit"] = "abc123"
    record.save(tmp_path / "nobody-cpu.json")
    done = command("report", "--records", str(tmp_path), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.html").read_text()
    assert "<td>a method: accuracy</td><td>91.000 ± 12.706</td>" in text
    assert "Nothing was gained." in text
    assert "abc123" in text
    assert "a method: curve" not in text
    assert "a method: one" not in text
    assert "nobody cpu,a method,0,curve,1,2.0" in (tmp_path / "numbers.csv").read_text().splitlines()


WITHOUT = """
import sys
for name in ("torchvision", "transformers"):
    sys.modules[name] = None
sys.argv = ["benchmarks", "list"]
import runpy
runpy.run_module("benchmarks", run_name="__main__")
"""


def test_without_the_larger_packages_the_rest_is_there() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "smoke" in next(line for line in done.stdout.splitlines() if line.startswith("spiral"))
