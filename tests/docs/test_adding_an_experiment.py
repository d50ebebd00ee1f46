"""The experiment in the documentation is complete: with its line in the registry it runs, resumes and is shown."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers.documents import ROOT, sections

from benchmarks.core import records
from benchmarks.core.registry import REGISTERED, Entry
from benchmarks.core.runner import run
from benchmarks.report import pages

NAME = "docs/adding-an-experiment.md: Adding an experiment"
LINES = 150


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file of the documentation, where its line in the registry expects it."""
    (section,) = (each for each in sections() if each.name == NAME)
    (program,) = section.programs
    assert program.count("\n") <= LINES
    made = ModuleType("benchmarks.experiments.few_digits")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(program, NAME, "exec"), made.__dict__)
    (line,) = (text for language, text in section.blocks if language == "text")
    for name, entry in eval("{" + line + "}", {"Entry": Entry}).items():
        monkeypatch.setitem(REGISTERED, name, entry)
    return made


def test_the_example_runs_and_is_shown(module: ModuleType, tmp_path: Path) -> None:
    benchmark = REGISTERED["few-digits"].load()
    outcome = run(benchmark, "smoke", tmp_path)
    assert outcome.finished == outcome.total == 4 + 1 + 2 * 3
    record = records.load(outcome.path)
    chapters = pages.chapters([(record, benchmark.sections)], {})
    lines = [line for chapter in chapters for block in chapter.blocks for line in block.lines]
    assert len(lines) == 3 * 3
    assert all(line["ours"] != "not yet" for line in lines)
    assert run(benchmark, "smoke", tmp_path, seeds=3).finished == 4 + 1 + 3 * 3


def test_the_page_is_the_one_that_the_code_names() -> None:
    assert "docs/adding-an-experiment.md" in (ROOT / "benchmarks/core/study.py").read_text(encoding="utf-8")
