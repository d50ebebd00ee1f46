"""The demo: run three comparisons, write the report, and say in three sentences what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.core import records, runner, stats
from benchmarks.core.records import Record
from benchmarks.core.registry import REGISTERED
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Curves, Section
from benchmarks.core.study_sections import study_sections
from benchmarks.experiments.demo import finetune, thin
from benchmarks.report import highlights, pages, plots
from benchmarks.report.highlights import Card, Comparison, Cost

DIGITS = 2
VERDICTS = {"above": "ahead", "below": "behind", "within noise": "level within noise"}
SLOW, SGD = "multirate, all biases", "SGD"
TASK, UPRIGHT, SPIRAL = "few digits, wide MLP", "transposed to upright digits", "4-turn spiral, slow biases"
ACCURACY = "test accuracy in %"

CARDS = (
    Card(
        "Thin training", "On k - 1 of k steps a random part of the hidden units is absent and not computed.",
        [Comparison(TASK, thin.THIN, other, "demo-thin", (thin.THIN, other)) for other in (thin.DROPOUT, thin.NONE)],
        Cost("A step takes {} of a plain step's time, one with dropout {}.", "demo-thin", (thin.THIN, thin.DROPOUT),
             "relative cost"),
        "You would use dropout and layers are wide.", "demo-thin",
        Curves(thin.SHOWN.methods, "accuracy by time", "seconds of training", ACCURACY, "seconds", ylim=(70, 97)),
    ),
    Card(
        "Fine-tuning", "The upper layers move at every step, the lower ones once in k steps, by k times as much.",
        [Comparison(UPRIGHT, "multirate", other, "demo-finetune", (finetune.MULTIRATE, other))
         for other in (finetune.FULL, finetune.FROZEN, finetune.LAST)],
        Cost("A step takes {} of a full step's time, one with the lower half frozen {}.", "demo-finetune",
             (finetune.MULTIRATE, finetune.FROZEN), "relative cost"),
        "You would fine-tune everything, seconds are short, and freezing costs accuracy.", "demo-finetune",
        Curves(finetune.SHOWN.methods, "accuracy by time", "seconds of training", ACCURACY, "seconds"),
    ),
    Card(
        "Several time scales", "Any group of parameters gets a period of its own: here all biases move once in five "
        "steps.",
        [Comparison(SPIRAL, "multirate", SGD, "spiral", (SLOW, SGD), "")],
        Cost("", "spiral", (), ""),
        "Parts of the network want different step sizes and plain SGD stalls.", "spiral",
        Curves({SGD: SGD, SLOW: SLOW}, "accuracy per evaluation", "epoch", ACCURACY, "epoch", ylim=(45, 95)),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Race:
    """Two methods of a record that are watched over time."""

    name: str  # what ours is called in the sentence
    ours: str  # the method of this library, as the record names it
    rival: str  # what it is compared with
    on: str  # on what, in words that end the sentence
    curve: str = "accuracy by time"  # the name of the lists of accuracies in the results
    time: str = "seconds"  # the name of the lists of seconds or epochs
    unit: str = "time"  # what `time` counts, in a word

    def said(self, record: Record) -> str:
        """Return when ours reached the rival's last accuracy, or by how much it stayed away from it.

        The share of the time is given where every seed reached it: the mean of the seeds with a 95 % interval.
        """
        ours, rival = (record.results(method) for method in (self.ours, self.rival))
        seeds = sorted(ours.keys() & rival.keys())
        shares = [self._share(ours[seed], rival[seed]) for seed in seeds]
        reached = [share for share in shares if share is not None]
        if len(seeds) < 2:
            return f"{self.name} and {self.rival} have {len(seeds)} common seeds on {self.on}: too few to say anything."
        goal = f"{self.name} reached the accuracy of {self.rival}"
        if len(reached) == len(seeds):
            return f"{goal} in {_interval(reached)} of its {self.unit} on {self.on}."
        last = [ours[seed][self.curve][-1] - rival[seed][self.curve][-1] for seed in seeds]
        end = f"in the end it was {VERDICTS[stats.judge(last)]}: {_interval(last, '+')} points from it"
        return f"{goal} with {len(reached)} of {len(seeds)} seeds on {self.on}; {end}."

    def _share(self, ours: Mapping[str, Sequence[float]], rival: Mapping[str, Sequence[float]]) -> float | None:
        """Return the share of the rival's time after which ours first had the rival's last accuracy."""
        goal, end = rival[self.curve][-1], rival[self.time][-1]
        times = zip(ours[self.time], ours[self.curve], strict=True)
        return next((time / end for time, accuracy in times if accuracy >= goal), None)


def _interval(values: Sequence[float], sign: str = "") -> str:
    found = stats.summarize(values)
    mean, low, high = (f"{value:{sign}.{DIGITS}f}" for value in (found.mean, *found.interval))
    return f"{mean} (95 % interval {low} to {high}, {found.n} seeds)"


RACES = {
    "demo-thin": Race("Thin training", thin.THIN, thin.DROPOUT, "few digits"),
    "demo-finetune": Race("Multirate fine-tuning", finetune.MULTIRATE, finetune.FULL, "upright digits"),
    "spiral": Race("Multirate training", SLOW, SGD, "the spiral", "accuracy per evaluation", "epoch", "epochs"),
}
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
