"""Multirate fine-tuning of a text encoder (the paper's figure 7 and tables 1, 2, A3 and A4).

`gpu` and `paper` take DistilBERT and whole GLUE tasks from the hub; `cpu` a smaller encoder and a part of the texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from benchmarks.core.comparison import Comparison, Job, each_epoch
from benchmarks.core.sections import Claim, Curves, Paper, Row, Section, Shown, gain, metric, times
from benchmarks.core.study import Study
from benchmarks.core.training import Loop
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.data import GLUE, Task
from benchmarks.experiments.text.recipes import Recipe, Setting, loop

ABLATIONS = {
    part: (
        Recipe(fast=fast), Recipe(fast=fast, drift=False), Recipe(fast=fast, slow_lr="per_gradient"),
        Recipe(fast=fast, k=3), Recipe(fast=fast, k=10),
    )
    for part, fast in (("classifier", "head"), ("last layer", "last"))
}  # fmt: skip
FULL, HEAD_ONLY, LAST_ONLY = Recipe(), Recipe(trained="head"), Recipe(trained="last")
FIGURE = (FULL, ABLATIONS["classifier"][0], ABLATIONS["last layer"][0], HEAD_ONLY, LAST_ONLY)
METHODS = {
    "SGD": (*FIGURE, *ABLATIONS["classifier"][1:], *ABLATIONS["last layer"][1:]),
    "AdamW": (FULL, *(ABLATIONS[part][which] for part in ABLATIONS for which in (0, 2))),
}
"""Of each optimizer, the most important first."""

TABLE_K = {  # accuracy and seconds
    "classifier": {
        3: (Paper(89.26, 88.69, 90.01), 245), 5: (Paper(89.43, 87.92, 90.28), 198),
        10: (Paper(88.53, 84.79, 89.79), 180),
    },
    "last layer": {
        3: (Paper(88.91, 87.42, 90.06), 264), 5: (Paper(89.70, 89.35, 90.23), 224),
        10: (Paper(88.65, 87.97, 89.73), 207),
    },
}  # fmt: skip
TABLE1 = {"classifier": Paper(88.69, 87.53, 89.68), "last layer": Paper(89.54, 88.91, 90.44)}  # no drift
TABLE2 = {"classifier": Paper(88.78, 87.64, 89.90), "last layer": Paper(89.29, 88.08, 89.95)}  # h_S = h_F
TABLE_GLUE = {  # full and multirate: accuracy (median of 5) and seconds
    "WNLI": ((54.2, 20), (54.9, 11)), "RTE": ((57.8, 192), (57.8, 127)), "SST-2": ((89.7, 380), (89.7, 224)),
    "QNLI": ((86.6, 14148), (86.4, 10602)), "MNLI": ((75.3, 14617), (75.4, 10797)),
}  # fmt: skip


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

    def compared(setting: Setting, methods: Mapping[str, Recipe], *, curve: bool = False) -> Comparison[Recipe]:
        """Compare after the last epoch, or after every one where a curve is drawn."""
        count = min(each for each in (setting.texts, config.pool, GLUE[setting.name].count) if each is not None)
        ends = each_epoch(count // setting.batch, setting.epochs)
        return Comparison(methods, config.seeds, ends if curve else ends[-1:], setting=setting)

    def with_lr(optimizer: Literal["SGD", "AdamW"], recipes: Sequence[Recipe]) -> dict[str, Recipe]:
        lr = config.sst2.lr[optimizer]
        return {name(each, optimizer): replace(each, optimizer=optimizer, lr=lr) for each in recipes}

    return [
        compared(config.sst2, with_lr("SGD", FIGURE), curve=True),
        compared(config.sst2, with_lr("SGD", METHODS["SGD"][len(FIGURE) :])),
        *(compared(setting, glue_recipes(setting)) for setting in config.glue),
        *([compared(config.sst2, with_lr("AdamW", METHODS["AdamW"]))] if "AdamW" in config.sst2.lr else []),
    ]


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
    torch.manual_seed(seed)
    net = text_model.encoder(config.encoder, task.classes).to(job.device)
    return loop(net, recipe.prepare(net), task.train, setting.batch, seed, {"test": task.dev})


def part_of(task: Task, setting: Setting, seed: int) -> Task:
    """Return the training texts that the seed draws, and the first dev texts."""
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    return Task(task.train[order[: setting.texts]], task.dev[: setting.dev], task.classes)


NOTE = (
    "The paper fine-tunes DistilBERT on all of SST-2, with SGD, momentum 0.9, h / k = 1e-4, batch 16. The preset cpu "
    "fine-tunes MiniLM (6 layers, width 384) on 512 training texts drawn by the seed, cut at 32 tokens, for 2 epochs, "
    "with h / k = 2e-3 (AdamW: 5e-5), without dropout; accuracy is that of the last epoch on all 872 dev texts. "
    "Seconds are CPU seconds of the training steps, one thread. Our classifier is one linear layer on the mean output."
)


def name(recipe: Recipe, optimizer: str = "SGD") -> str:
    return f"SST-2, {optimizer}: {recipe.name}"


faster = partial(times, name="training seconds")


def _no_worse(text: str, method: str, than: str) -> Claim:
    return Claim(f"{text}: no worse than full fine-tuning by more than a point", gain(method, than, "accuracy"), -1)


def _figure() -> Section:
    methods = {recipe.name: name(recipe) for recipe in FIGURE}
    full, fc, last, head_only, last_only = methods.values()
    shown = Shown("Fine-tuning on SST-2", methods, ylabel="dev accuracy [%]",
                  note=NOTE + " The figure's own numbers are not in the paper's text.")  # fmt: skip
    return shown.section(
        "full, multirate, and later layers only", "accuracy",
        Curves(methods, "accuracy by step", "seconds of training", shown.ylabel, x="training seconds by step"),
        item="Figure 7",
        claims=(
            _no_worse("classifier fast", fc, full),
            _no_worse("last layer fast", last, full),
            Claim("classifier fast: more accurate than the classifier only", gain(fc, head_only, "accuracy")),
            Claim("last layer fast: more accurate than the last layer only", gain(last, last_only, "accuracy")),
            Claim("classifier fast: at least 1.7 times as fast as full fine-tuning", faster(fc, full), above=1.7),
        ),
    )  # fmt: skip


def _against(
    item: str, title: str, which: int, words: tuple[str, str], without: Mapping[str, Paper], claim: str
) -> Section:
    """Return the table of the paper's method beside one ablation, for both fast parts."""
    pairs = {part: (name(recipes[0]), name(recipes[which])) for part, recipes in ABLATIONS.items()}
    return Section(
        item, title, "%",
        rows=tuple(
            Row(f"{part} fast, {word}", metric(method, "accuracy"), paper)
            for part, pair in pairs.items()
            for word, method, paper in zip(words, pair, (TABLE_K[part][5][0], without[part]), strict=True)
        ),
        claims=tuple(Claim(f"{part} fast: {claim}", gain(*pair, "accuracy")) for part, pair in pairs.items()),
        tolerance=0.5, note=NOTE,
    )  # fmt: skip


def _ks() -> tuple[Section, ...]:
    methods = {(part, recipe.k): name(recipe) for part, (_, _, _, *ks) in ABLATIONS.items() for recipe in ks}
    methods |= {(part, 5): name(recipes[0]) for part, recipes in ABLATIONS.items()}
    keys = [(part, k) for part in ABLATIONS for k in (3, 5, 10)]
    return (
        Section(
            "Table A4", "Effect of k: accuracy", "%",
            rows=tuple(Row(f"{part} fast, k = {k}", metric(methods[part, k], "accuracy"), TABLE_K[part][k][0])
                       for part, k in keys),
            claims=tuple(
                Claim(f"{part} fast: k = 5 better than k = {k}", gain(methods[part, 5], methods[part, k], "accuracy"))
                for part, k in keys if k != 5
            ),
            tolerance=0.5, note=NOTE,
        ),
        Section(
            "Table A4", "Effect of k: seconds of full fine-tuning over those of multirate", center="median",
            rows=tuple(
                Row(f"{part} fast, k = {k}", faster(methods[part, k], name(FULL)), Paper(380 / TABLE_K[part][k][1]))
                for part, k in keys
            ),
            tolerance=0.2,
            note="The paper's seconds of full fine-tuning (380) are those of its GLUE table. Ours: CPU seconds.",
        ),
    )  # fmt: skip


def _glue(tasks: Sequence[str], presets: frozenset[str]) -> tuple[Section, ...]:
    methods = {task: (f"{task}: full", f"{task}: multirate") for task in tasks}
    methods["SST-2"] = name(FULL), name(ABLATIONS["last layer"][0])
    note = (
        "The paper's k, h / k, weight decay and fast blocks for each task, batch 16 (MNLI 32). The preset cpu takes "
        "320 training texts of WNLI and RTE, cut at 64 tokens, for one epoch, on MiniLM; of SST-2 what figure 7 has."
    )
    make = partial(Section, "Table A3", center="median", note=note, presets=presets)
    return (
        make(
            "GLUE tasks: accuracy", "%", digits=1, tolerance=1.0,
            rows=tuple(
                Row(f"{task}, {word}", metric(method, "accuracy"), Paper(paper[0]))
                for task, pair in methods.items()
                for word, method, paper in zip(("full", "multirate"), pair, TABLE_GLUE[task], strict=True)
            ),
            claims=tuple(
                Claim(f"{task}: multirate no worse than full by more than a point", gain(two, full, "accuracy"), -1)
                for task, (full, two) in methods.items()
            ),
        ),
        make(
            "GLUE tasks: seconds of full fine-tuning over those of multirate", tolerance=0.2,
            rows=tuple(
                Row(task, faster(two, full), Paper(TABLE_GLUE[task][0][1] / TABLE_GLUE[task][1][1]))
                for task, (full, two) in methods.items()
            ),
            claims=tuple(
                Claim(f"{task}: multirate faster", faster(two, full), above=1) for task, (full, two) in methods.items()
            ),
        ),
    )  # fmt: skip


def _adamw() -> Section:
    methods = {recipe.name: name(recipe, "AdamW") for recipe in METHODS["AdamW"]}
    coupled, held = ({part: methods[recipes[which].name] for part, recipes in ABLATIONS.items()} for which in (0, 2))

    return Shown(
        "Fine-tuning on SST-2 with AdamW", methods, note=NOTE, ylabel="dev accuracy [%]"
    ).section(
        "equal epochs", "accuracy",
        claims=(
            *(
                Claim(f"{part} fast: slow lr / k better than coupled", gain(held[part], coupled[part], "accuracy"))
                for part in ABLATIONS
            ),
            *(_no_worse(f"{part} fast, slow lr / k", held[part], methods[FULL.name]) for part in ABLATIONS),
        ),
    )  # fmt: skip


SECTIONS = (
    _figure(),
    _against("Table 1", "Linear drift or not", 1, ("drift", "no drift"), TABLE1, "drift better than no drift"),
    _against(
        "Table 2",
        "Larger or same step size for the slow part",
        2,
        ("h_S = k h_F", "h_S = h_F"),
        TABLE2,
        "h_S = k h_F better than h_S = h_F",
    ),
    *_ks(),
    *_glue(tuple(TABLE_GLUE)[:3], frozenset({"smoke", "cpu", "gpu"})),
    *_glue(tuple(TABLE_GLUE), frozenset({"paper"})),
    _adamw(),
)
BENCHMARK = Study("text", PRESETS, comparisons, build, data="GLUE tasks").benchmark(SECTIONS)
