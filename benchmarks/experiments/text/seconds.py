"""Multirate fine-tuning of a text encoder where it pays and where not: recipes at equal seconds, on SST-2.

Goes beyond the paper, which compares at equal epochs. The recipes were named before anything was run, but for the one
with frozen embeddings: it did best of the others on a map of 33 recipes (the closed record `text map`).
"""

from dataclasses import dataclass, replace

import torch

from benchmarks.core.comparison import Comparison, Costs, Job
from benchmarks.core.sections import Section, Shown
from benchmarks.core.study import Study
from benchmarks.core.training import Loop
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.recipes import Recipe, loop

HALF_FAST = Recipe(fast="half", slow_lr="per_gradient", optimizer="AdamW")
PAPERS = replace(HALF_FAST, fast="head", slow_lr="coupled")
BEST = replace(HALF_FAST, trained="layers")
PLAIN = {part: Recipe(part, optimizer="AdamW") for part in ("all", "half", "layers")}
METHODS = {
    f"AdamW: {recipe.name}": recipe
    for recipe in (PLAIN["all"], PLAIN["half"], HALF_FAST, PLAIN["layers"], PAPERS, BEST)
}
REFERENCE, FROZEN, HALF, _, HEAD, MAPPED = METHODS
LONG = "long budget, "


@dataclass(frozen=True, kw_only=True)
class SecondsConfig:
    """The encoder, the texts, and budgets in steps of full fine-tuning; there may be no long one (0)."""

    seeds: int
    encoder: str
    cycle: int = 10  # steps of a turn of the timing: whole cycles for every k
    pool: int | None = None
    dev: int | None = None
    longest: int = 32
    batch: int = 16
    middle: int
    long: int
    rounds: int  # of timing
    adamw: float = 5e-5


PRESETS = {
    "smoke": SecondsConfig(
        seeds=1, encoder="minilm", middle=1, long=0, rounds=1, cycle=1, pool=64, dev=8, longest=8, batch=4
    ),
    "cpu": SecondsConfig(seeds=8, encoder="minilm", middle=40, long=120, rounds=2, pool=20_000),
    "gpu": SecondsConfig(seeds=8, encoder="distilbert", middle=1000, long=4000, rounds=5, longest=64, adamw=2e-5),
}
PRESETS["paper"] = replace(PRESETS["gpu"], seeds=10, longest=128)


def comparisons(config: SecondsConfig) -> list[Comparison[Recipe]]:
    budgets = {"": config.middle} | ({LONG: config.long} if config.long else {})
    costs = Costs[Recipe](REFERENCE, config.rounds, config.cycle)
    return [Comparison(METHODS, config.seeds, (budget,), costs, prefix=prefix) for prefix, budget in budgets.items()]


def build(config: SecondsConfig, recipe: Recipe, seed: int, job: Job) -> Loop:
    """Return the training of a freshly loaded encoder; seeds draw the order of the texts and the classifier."""
    task = text_data.load("SST-2", config.encoder, config.longest, job.data_dir, config.pool).to(job.device)
    torch.manual_seed(seed)
    net = text_model.encoder(config.encoder, task.classes).to(job.device)
    optimizer = replace(recipe, lr=config.adamw).prepare(net)
    return loop(net, optimizer, task.train, config.batch, seed, {"test": task.dev[: config.dev]})


NOTE = (
    "SST-2, one linear layer on the mean output of the encoder, constant lr, no weight decay, no dropout. Equal "
    "seconds are CPU seconds of one thread, by the cost of a step measured with all methods in turns. The preset cpu "
    "fine-tunes MiniLM with AdamW (lr 5e-5), batch 16 on texts cut at 32 tokens, and gives each method the seconds of "
    "40 steps of full fine-tuning (long budget 120). All 872 dev texts; seeds draw the order of the texts and the "
    "classifier."
)


def _shown(prefix: str) -> Shown:
    """Return all methods; those that the question is about minus full fine-tuning and minus the frozen half."""
    methods = {method: f"{prefix}{method}" for method in METHODS}
    pairs = [(method, other) for other in (REFERENCE, FROZEN) for method in METHODS if method in (HALF, HEAD, MAPPED)]
    return Shown(
        "Fine-tuning on SST-2", methods, pairs,
        note=NOTE, ylabel="dev accuracy [%]", task="" if prefix else "SST-2, MiniLM",
        against=[(MAPPED, REFERENCE), (MAPPED, FROZEN)],
    )  # fmt: skip


def _sections(shown: Shown, how: str) -> list[Section]:
    return [
        shown.section(f"equal seconds{how}", "accuracy at equal seconds"),
        shown.section(f"equal epochs{how}", "accuracy"),
    ]


SHORT = _shown("")
STUDY = Study("text-seconds", PRESETS, comparisons, build, data="SST-2")
BENCHMARK = STUDY.benchmark(
    [*_sections(SHORT, ""), *_sections(_shown(LONG), ", three times as long"), SHORT.sections(REFERENCE)[2]], [SHORT]
)
