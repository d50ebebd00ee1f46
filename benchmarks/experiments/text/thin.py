"""Fine-tuning a pretrained encoder with its own dropout, without, and with thin sub-networks instead.

Goes beyond the paper. AdamW after a warm-up, few training texts drawn for each seed; nothing is tuned. Methods are
compared after as many steps and after as many seconds as fine-tuning without dropout has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import nn

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, evenly
from benchmarks.core.sections import Section
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown, study_sections
from benchmarks.core.training import Loop
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.recipes import Trainee, loop

OWN = 0.1  # the dropout with which encoders of the BERT family come


@dataclass(frozen=True)
class Method:
    """What is left out in training: p of its own dropout, or of heads and hidden units."""

    kind: Literal["none", "dropout", "thin"] = "none"
    p: float = 0.0
    k: int = 5


NONE, DROPOUT, THIN = "no dropout", "its own dropout", "thin, k = 5, p = 0.1"
METHODS = {
    NONE: Method(),
    DROPOUT: Method("dropout", OWN),
    THIN: Method("thin", 0.1),
    "thin, k = 5, p = 0.25": Method("thin", 0.25),
}


@dataclass(frozen=True)
class Config:
    """How many texts of each task, and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    tasks: Mapping[str, int | None]  # training texts drawn; None: all
    encoder: str = "minilm"
    points: int = 1
    batch: int = 16
    longest: int = 32
    lr: float = 1e-4
    timings: int = 2


PRESETS = {
    "smoke": Config(2, 2, {"SST-2": 16}, batch=4, longest=8, timings=1),
    "cpu": Config(6, 90, {"SST-2": 480}),
    "gpu": Config(10, 1000, {"SST-2": 4000, "RTE": None}, "distilbert", 4, 32, 128, 5e-5, 10),
}


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return one comparison for each task."""
    return [
        Comparison(
            METHODS, config.seeds, evenly(config.steps, config.points),
            Costs(NONE, config.timings, 5, f"costs {task}"), setting=task, prefix=f"{task}: ",
        )
        for task in config.tasks
    ]  # fmt: skip


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a freshly loaded encoder on the seed's own draw of texts."""
    whole = text_data.load(job.setting, config.encoder, config.longest, job.data_dir).to(job.device)
    order = torch.randperm(len(whole.train), generator=torch.Generator().manual_seed(seed))
    net = network(config, method, whole.classes, seed).to(job.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=config.lr, weight_decay=0.01)
    if method.kind == "thin":
        mrreg.attach(optimizer, net, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator
    train = whole.train[order[: config.tasks[job.setting]]]
    training = loop(Trainee(net, optimizer), train, config.batch, seed, {"test": whole.dev})
    warm = config.steps // 10

    def warming(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min((step + 1) / max(warm, 1), 1.0)

    training.before = warming
    return training


def network(config: Config, method: Method, classes: int, seed: int) -> nn.Module:
    """Return the encoder and classifier of a method."""
    net = text_model.encoder(config.encoder, classes, seed)
    if method.kind == "thin":
        groups = plan(config.encoder, method.p, classes)
        return mrreg.thin(net, k=method.k, plan=groups)[0]
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = method.p
    return net


@cache
def plan(encoder: str, p: float, classes: int) -> mrreg.ThinReport:
    """Return the groups of units, found once for all trainings."""
    ids = torch.ones(2, 6, dtype=torch.long)
    return mrreg.thin(text_model.encoder(encoder, classes, 0), p, example_inputs=(ids, ids.bool()))[1]


def sections(task: str, presets: frozenset[str]) -> tuple[Section, ...]:
    """Return what is shown of one task."""
    ours = [name for name in METHODS if name.startswith("thin")]
    shown = Shown(
        f"Thin fine-tuning on {task}",
        {name: f"{task}: {name}" for name in METHODS},
        [*((name, other) for name in ours for other in (DROPOUT, NONE)), (DROPOUT, NONE)],
        words="more accurate than",
        note="MiniLM (`gpu`: DistilBERT) on 480 texts (`gpu`: 4,000 of SST-2, all of RTE) drawn for each seed, three "
        "epochs, AdamW with lr 1e-4 (`gpu`: 5e-5) after a warm-up. Nothing is tuned. Accuracy on the dev texts.",
        presets=presets,
        ylabel="dev accuracy [%]",
    )
    return study_sections(shown, baseline=NONE)


STUDY = Study("thin-finetune", PRESETS, comparisons, build, data="SST-2 (gpu: and RTE)")
BENCHMARK = STUDY.benchmark([*sections("SST-2", frozenset({"cpu", "gpu"})), *sections("RTE", frozenset({"gpu"}))])
