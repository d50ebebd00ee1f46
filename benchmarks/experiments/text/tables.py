"""Multirate fine-tuning of a text encoder (the paper's figure 7 and tables 1, 2, A3 and A4).

`gpu` and `paper` take DistilBERT and whole GLUE tasks from the hub; `cpu` a smaller encoder and a part of the texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.core.comparison import Comparison, Job, Outcome, each_epoch
from benchmarks.core.records import Result
from benchmarks.core.study import Study
from benchmarks.core.training import Loop
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.data import GLUE, Task
from benchmarks.experiments.text.recipes import Recipe, loop
from benchmarks.experiments.text.tables_report import FIGURE, METHODS, name, sections


@dataclass(frozen=True)
class Setting:
    """A task and what is trained on it."""

    name: str  # as in GLUE
    lr: dict[str, float]  # of each optimizer whose methods are run
    epochs: int = 1
    texts: int | None = None  # how many training texts, drawn by the seed; None: all
    dev: int | None = None  # how many dev texts; None: all
    batch: int = 16
    longest: int = 128  # tokens at which texts are cut
    k: int | None = None  # where not the methods' own, as `fast`
    fast: str | None = None
    weight_decay: float = 0.0


@dataclass(frozen=True)
class TextConfig:
    """The encoder, the setting of SST-2, and those of the GLUE table."""

    seeds: int
    encoder: str
    sst2: Setting
    glue: tuple[Setting, ...]
    pool: int | None = None  # training texts from which the seeds draw


PAPER_GLUE = (
    Setting("WNLI", {"SGD": 1e-4}, epochs=3, k=4, fast="last"),
    Setting("RTE", {"SGD": 5e-4}, epochs=3, k=4, fast="last 2"),
    Setting("QNLI", {"SGD": 5e-4}, k=2, fast="last 2", weight_decay=5e-4),
    Setting("MNLI", {"SGD": 3e-3}, batch=32, k=2, fast="last", weight_decay=5e-4),
)
PRESETS = {
    "smoke": TextConfig(
        seeds=1, encoder="minilm",
        sst2=Setting("SST-2", {"SGD": 1e-3}, texts=8, dev=8, batch=4, longest=8),
        glue=(Setting("WNLI", {"SGD": 1e-4}, texts=8, dev=8, batch=4, longest=8, k=2, fast="last"),),
        pool=64,
    ),
    "cpu": TextConfig(
        seeds=4, encoder="minilm", pool=20_000,
        sst2=Setting("SST-2", {"SGD": 2e-3, "AdamW": 5e-5}, epochs=2, texts=512, longest=32),
        glue=(
            Setting("WNLI", {"SGD": 1e-4}, texts=320, longest=64, k=4, fast="last"),
            Setting("RTE", {"SGD": 5e-4}, texts=320, longest=64, k=4, fast="last 2"),
        ),
    ),
    "gpu": TextConfig(
        seeds=5, encoder="distilbert",
        sst2=Setting("SST-2", {"SGD": 1e-4, "AdamW": 2e-5}, longest=64), glue=PAPER_GLUE[:2],
    ),
    "paper": TextConfig(
        seeds=10, encoder="distilbert", sst2=Setting("SST-2", {"SGD": 1e-4, "AdamW": 2e-5}), glue=PAPER_GLUE
    ),
}  # fmt: skip


def comparisons(config: TextConfig) -> list[Comparison[Recipe]]:
    """Return the paper's methods on SST-2, then the GLUE table, then what goes beyond the paper."""
    first, *others = config.sst2.lr
    return [
        _ablations(config, first, FIGURE, curve=True),
        _ablations(config, first, [each for each in METHODS[first] if each not in FIGURE]),
        *(_comparison(config, setting, glue_recipes(setting)) for setting in config.glue),
        *(_ablations(config, optimizer, METHODS[optimizer]) for optimizer in others),
    ]


def _ablations(
    config: TextConfig, optimizer: str, recipes: Sequence[Recipe], *, curve: bool = False
) -> Comparison[Recipe]:
    lr = config.sst2.lr[optimizer]
    methods = {
        name(recipe, optimizer): replace(recipe, optimizer="SGD" if optimizer == "SGD" else "AdamW", lr=lr)
        for recipe in recipes
    }
    return _comparison(config, config.sst2, methods, curve=curve)


def _comparison(
    config: TextConfig, setting: Setting, methods: Mapping[str, Recipe], *, curve: bool = False
) -> Comparison[Recipe]:
    """Compare after the last epoch, or after every one where a curve is drawn."""
    count = min(each for each in (setting.texts, config.pool, GLUE[setting.name].count) if each is not None)
    ends = each_epoch(count // setting.batch, setting.epochs)
    return Comparison(methods, config.seeds, ends if curve else ends[-1:], setting=setting)


def glue_recipes(setting: Setting) -> dict[str, Recipe]:
    """Return the two columns of the GLUE table."""
    full = Recipe(lr=setting.lr["SGD"], weight_decay=setting.weight_decay)
    assert setting.k is not None
    two = replace(full, fast=setting.fast, k=setting.k)
    return {f"{setting.name}: full": full, f"{setting.name}: multirate": two}


def build(config: TextConfig, recipe: Recipe, seed: int, job: Job) -> Loop:
    """Return the training with a recipe; all of a seed see the same texts in the same batches and the same head."""
    setting: Setting = job.setting
    whole = text_data.load(setting.name, config.encoder, setting.longest, job.data_dir, config.pool)
    task = part_of(whole, setting, seed).to(job.device)
    net = text_model.encoder(config.encoder, task.classes, seed).to(job.device)
    return loop(recipe.prepare(net), task.train, setting.batch, seed, {"test": task.dev})


def part_of(task: Task, setting: Setting, seed: int) -> Task:
    """Return the training texts that the seed draws, and the first dev texts."""
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    return Task(task.train[order[: setting.texts]], task.dev[: setting.dev], task.classes)


def result(config: TextConfig, outcome: Outcome[Recipe]) -> Result:
    """Return accuracy and seconds of training, at the end and after each epoch that was evaluated."""
    accuracy, seconds = outcome.at_steps(), list(outcome.by_steps.times.values())
    return {
        "accuracy": accuracy[-1],
        "seconds": seconds[-1],
        "accuracy per epoch": accuracy,
        "seconds per epoch": seconds,
    }


STUDY = Study("text", PRESETS, comparisons, build, result=result, data="GLUE tasks")
BENCHMARK = STUDY.benchmark(sections())
