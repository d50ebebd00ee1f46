"""Fine-tuning a pretrained encoder on few texts: its own dropout, and thin sub-networks instead."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Loop
from benchmarks.experiments.regularizers import Method, Regularizers, Tried
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.recipes import loop as text_loop

TASK = "SST-2"


@dataclass(frozen=True)
class Config:
    """How many texts, and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    texts: int | None = None  # that are drawn to train on; None: all
    encoder: str = "minilm"
    points: int = 3
    batch: int = 16
    longest: int = 32
    timings: int = 3
    validation: int = 1000  # the last texts of those to train on
    test: int | None = None  # of the dev texts; None: all


def network(config: Config, method: Method, job: Job) -> nn.Module:
    """Return the encoder and classifier of a method; their seed is torch's random state."""
    classes = text_data.load(TASK, config.encoder, config.longest, job.data_dir).classes
    net = text_model.encoder(config.encoder, classes)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = method.of("dropout")
    return net


def loop(config: Config, net: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    whole = text_data.load(TASK, config.encoder, config.longest, job.data_dir).to(job.device)
    rest = len(whole.train) - config.validation
    chosen = torch.randperm(rest, generator=torch.Generator().manual_seed(seed))[: config.texts]
    splits = {"validation": whole.train[torch.arange(rest, len(whole.train))], "test": whole.dev[: config.test]}
    return text_loop(net, optimizer, whole.train[chosen], config.batch, seed, splits)


STUDY = Regularizers(
    "regularizers-finetune",
    {
        "smoke": Config(2, 2, 16, points=1, batch=4, longest=8, timings=1, validation=4, test=4),
        "cpu": Config(5, 90, 480, points=1, validation=400),
        "gpu": Config(10, 1000, 4000, "distilbert", 4, 32, 128, 10),
    },
    lambda config: f"{TASK}, {config.texts or 'all'} texts, encoder",
    network=network,
    example=lambda *_: (torch.ones(2, 6, dtype=torch.long), torch.ones(2, 6, dtype=torch.bool)),
    loop=loop,
    tried=Tried(
        (3e-5, 1e-4, 2e-4, 4e-4),
        (0.1, 1.0),
        (0.1, 0.2),
        ((("hidden", 0.1), ("heads", 0.1)), (("hidden", 0.25), ("heads", 0.25))),
    ),
    note="MiniLM (`gpu`: DistilBERT) on 480 texts (`gpu`: 4,000) drawn for each seed, batch 16, three epochs, AdamW. "
    "Validation is on 400 (`gpu`: 1,000) other training texts at the end of the training, the test on the dev texts.",
    data="SST-2",
    warm=9,
)
BENCHMARK = STUDY.benchmark()
