"""Multirate fine-tuning of a text encoder (the paper's figure 7 and tables 1, 2, A3 and A4).

`gpu` and `paper` take DistilBERT and whole GLUE tasks from the hub; `cpu` a smaller encoder and a part of the texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.training import Plan, fit
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.data import Task
from benchmarks.experiments.text.recipes import Recipe
from benchmarks.experiments.text.tables_report import FIGURE, METHODS, name, sections
from benchmarks.experiments.text.training import loop


@dataclass(frozen=True)
class Setting:
    """A task and what is trained on it.

    Args:
        name: As in GLUE.
        lr: Of each optimizer whose methods are run.
        epochs: Passes over the training texts.
        texts: How many training texts, drawn by the seed; None: all.
        dev: How many dev texts; None: all.
        batch: Texts a step.
        longest: Tokens at which texts are cut.
        k: Where not the methods' own.
        fast: Where not the methods' own.
        weight_decay: Of all methods.
    """

    name: str
    lr: dict[str, float]
    epochs: int = 1
    texts: int | None = None
    dev: int | None = None
    batch: int = 16
    longest: int = 128
    k: int | None = None
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


@dataclass(frozen=True)
class Job:
    """One recipe on one task."""

    setting: Setting
    recipe: Recipe
    curve: bool  # evaluate after every epoch, not after the last only


def runs(config: TextConfig) -> list[Run]:
    """The paper's methods on SST-2, seed by seed, then the GLUE table, then what goes beyond the paper."""
    first, *others = config.sst2.lr
    blocks = [_ablations(config.sst2, first)]
    blocks += [_glue(setting) for setting in config.glue]
    blocks += [_ablations(config.sst2, optimizer) for optimizer in others]
    return [Run(method, (seed,), job) for block in blocks for seed in range(config.seeds) for method, job in block]


def _ablations(setting: Setting, optimizer: str) -> list[tuple[str, Job]]:
    lr = setting.lr[optimizer]
    return [
        (
            name(recipe, optimizer, setting.name),
            Job(setting, _with(recipe, optimizer, lr), curve=optimizer == "SGD" and recipe in FIGURE),
        )
        for recipe in METHODS[optimizer]
    ]


def _glue(setting: Setting) -> list[tuple[str, Job]]:
    recipes = glue_recipes(setting)
    return [(f"{setting.name}: {which}", Job(setting, recipe, curve=False)) for which, recipe in recipes.items()]


def _with(recipe: Recipe, optimizer: str, lr: float) -> Recipe:
    return replace(recipe, optimizer="SGD" if optimizer == "SGD" else "AdamW", lr=lr)


def glue_recipes(setting: Setting) -> dict[str, Recipe]:
    """The two columns of the GLUE table."""
    full = Recipe(lr=setting.lr["SGD"], weight_decay=setting.weight_decay)
    assert setting.k is not None
    return {"full": full, "multirate": replace(full, fast=setting.fast, k=setting.k)}


def execute(config: TextConfig, run: Run, context: Context) -> Sequence[Result]:
    """Fine-tune with one recipe; all recipes of a seed see the same texts in the same batches and the same head."""
    (seed,) = run.seeds
    job: Job = run.options
    setting = job.setting
    whole = text_data.load(setting.name, config.encoder, setting.longest, context.data_dir, config.pool)
    task = part_of(whole, setting, seed).to(context.device)
    net = text_model.encoder(config.encoder, task.classes, seed).to(context.device)
    training = loop(job.recipe.prepare(net), task.train, setting.batch, seed, {"test": task.dev})
    epoch = len(task.train) // setting.batch
    ends = [epoch * done for done in range(1, setting.epochs + 1)]
    curve = fit(training, Plan(ends if job.curve else ends[-1:], ("test",)), context.device)
    accuracy, seconds = list(curve.values["test"].values()), list(curve.times.values())
    return [
        {
            "accuracy": accuracy[-1],
            "seconds": seconds[-1],
            "accuracy per epoch": accuracy,
            "seconds per epoch": seconds,
        }
    ]


def part_of(task: Task, setting: Setting, seed: int) -> Task:
    """The training texts that the seed draws, and the first dev texts."""
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    return Task(task.train[order[: setting.texts]], task.dev[: setting.dev], task.classes)


BENCHMARK = Benchmark("text", PRESETS, runs, execute, sections(), "GLUE tasks")
