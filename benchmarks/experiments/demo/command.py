"""The demo: run three comparisons, write the report, and say in three sentences what came out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.core import records, runner
from benchmarks.core.records import Record
from benchmarks.core.registry import REGISTERED
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Section
from benchmarks.core.study_sections import study_sections
from benchmarks.experiments.demo import finetune, thin
from benchmarks.experiments.demo.cards import CARDS, RACES
from benchmarks.report import highlights, pages, plots

INTRO = (
    "Real digits that ship with scikit-learn, held-out test images, as many trials for every method that is tuned; "
    "nothing is downloaded."
)


def run(out: Path, preset: str) -> None:
    """Run the demo, write the report, and print what came out."""
    benchmarks: list[Benchmark[Any]] = [
        thin.STUDY.benchmark(study_sections(thin.SHOWN, thin.NONE)[1:]),
        finetune.STUDY.benchmark(study_sections(finetune.SHOWN, finetune.FULL)[1:]),
        REGISTERED["spiral"].load(),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other on matrices this small
    try:
        shown = [_shown(benchmark, preset, out) for benchmark in benchmarks]
    finally:
        torch.set_num_threads(threads)
    found = {record.benchmark: record for record, _ in shown}
    looks = plots.palette(label for card in CARDS for label in card.curves.methods)
    cards = highlights.cards(found, looks, CARDS)
    html, _ = pages.write("mrreg: what it gains and costs", INTRO, shown, pages.chapters(shown, {}), out, cards)
    print()
    for name, race in RACES.items():
        print(race.said(found[name]))
    print(f"Report: {html.resolve()}")


def _shown(benchmark: Benchmark[Any], preset: str, out: Path) -> tuple[Record, tuple[Section, ...]]:
    """Run a benchmark, and return its record and what it shows, without the methods that the short form leaves out."""
    print(f"{benchmark.name}: {len(benchmark.runs(benchmark.config(preset)))} runs", flush=True)
    record = records.load(runner.run(benchmark, preset, out, fresh=True).path)
    sections = benchmark.sections if benchmark.name.startswith("demo") else benchmark.sections[:1]
    return record, tuple(
        replace(section, rows=tuple(row for row in section.rows if row.values(record))) for section in sections
    )
