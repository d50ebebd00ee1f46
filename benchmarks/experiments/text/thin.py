"""Fine-tuning a pretrained encoder with its own dropout, without, and with thin sub-networks instead.

AdamW after a warm-up, few training texts drawn for each seed; nothing is tuned.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job, evenly
from benchmarks.core.training import Loop
from benchmarks.experiments.regularizers import DROPOUT, NONE, Method, Regularizers, Setting
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.recipes import Trainee
from benchmarks.experiments.text.recipes import loop as text_loop

METHODS = {
    NONE: Method(),
    DROPOUT: Method("dropout", 0.1),  # with which encoders of the BERT family come
    "thin, k = 5, p = 0.1": Method("thin", 0.1),
    "thin, k = 5, p = 0.25": Method("thin", 0.25),
}


@dataclass(frozen=True)
class Config:
    """How many texts of each task, and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    tasks: tuple[tuple[str, int | None], ...]  # training texts drawn; None: all
    encoder: str = "minilm"
    points: int = 1
    batch: int = 16
    longest: int = 32
    lr: float = 1e-4
    timings: int = 2


def network(config: Config, method: Method, job: Job) -> nn.Module:
    """Return the encoder and classifier of a method; their seed is torch's random state."""
    name, _ = job.setting
    classes = text_data.load(name, config.encoder, config.longest, job.data_dir).classes
    net = text_model.encoder(config.encoder, classes)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = method.of("dropout")
    return net


def loop(config: Config, net: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    name, count = job.setting
    whole = text_data.load(name, config.encoder, config.longest, job.data_dir).to(job.device)
    order = torch.randperm(len(whole.train), generator=torch.Generator().manual_seed(seed))
    training = text_loop(Trainee(net, optimizer), whole.train[order[:count]], config.batch, seed, {"test": whole.dev})
    warm = config.steps // 10

    def warming(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min((step + 1) / max(warm, 1), 1.0)

    training.before = warming
    return training


BENCHMARK = Regularizers(
    "thin-finetune",
    {
        "smoke": Config(2, 2, (("SST-2", 16),), batch=4, longest=8, timings=1),
        "cpu": Config(6, 90, (("SST-2", 480),)),
        "gpu": Config(10, 1000, (("SST-2", 4000), ("RTE", None)), "distilbert", 4, 32, 128, 5e-5, 10),
    },
    lambda config: [
        Setting(evenly(config.steps, config.points), tuple(METHODS), task[0], task, f"{task[0]}, MiniLM",
                f"Thin fine-tuning on {task[0]}")
        for task in config.tasks
    ],
    network=network,
    example=lambda config: (torch.ones(2, 6, dtype=torch.long), torch.ones(2, 6, dtype=torch.bool)),
    shares=lambda method, _: method.p,
    optimizer=lambda config, net, decay: torch.optim.AdamW(net.parameters(), config.lr, weight_decay=0.01),
    loop=loop,
    grid={},
    note="MiniLM (`gpu`: DistilBERT) on 480 texts (`gpu`: 4,000 of SST-2, all of RTE) drawn for each seed, three "
    "epochs, AdamW with lr 1e-4 (`gpu`: 5e-5) after a warm-up. Nothing is tuned. Accuracy on the dev texts.",
    data="SST-2 (gpu: and RTE)",
    cycle=5,
    methods=METHODS,
).benchmark()  # fmt: skip
