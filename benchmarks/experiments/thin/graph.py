"""A graph convolutional network of two layers on Cora or Citeseer, where dropout is at home."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Batches, Loop
from benchmarks.data import graphs
from benchmarks.experiments.regularizers import Method, Regularizers, Tried
from benchmarks.experiments.thin.mlp import shares


class GCN(nn.Module):
    """Two layers; each averages over neighbours what it has computed (Kipf and Welling, ICLR 2017).

    Shape:
        (nodes, words), (n) of numbers of nodes -> (n, classes)
    """

    edges: Tensor
    weights: Tensor

    def __init__(self, graph: graphs.Graph, width: int, p: tuple[float, float]) -> None:
        super().__init__()
        self.register_buffer("edges", graph.edges)
        self.register_buffer("weights", graph.weights)
        self.drop, self.drop_hidden = nn.Dropout(p[0]), nn.Dropout(p[1])
        self.first = nn.Linear(graph.words.shape[1], width)
        self.second = nn.Linear(width, int(graph.labels.max()) + 1)

    def _spread(self, h: Tensor) -> Tensor:
        source, target = self.edges
        return torch.zeros_like(h).index_add(0, target, h[source] * self.weights[:, None])

    def forward(self, x: Tensor, nodes: Tensor) -> Tensor:
        """Return logits of some nodes."""
        h = self._spread(self.first(self.drop(x))).relu()
        logits: Tensor = self._spread(self.second(self.drop_hidden(h)))[nodes]
        return logits


@dataclass(frozen=True)
class Config:
    """Which graph and how long; each seed has other weights, the splits being the usual ones."""

    seeds: int
    steps: int
    graph: str = "cora"
    points: int = 20
    width: int = 16
    timings: int = 8


def loop(config: Config, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    graph = graphs.load(config.graph, job.data_dir)
    x, y = graph.words.to(job.device), graph.labels.to(job.device)
    parts = {name: nodes.to(job.device) for name, nodes in graph.splits.items()}

    def batch(name: str) -> tuple[Tensor, ...]:
        return x, parts[name], y[parts[name]]

    batches = Batches(lambda _: ["train"], batch, torch.Generator())
    return Loop(
        model, optimizer, batches, {"validation": lambda: [batch("valid")], "test": lambda: [batch("test")]}
    )  # fmt: skip


def network(config: Config, method: Method, job: Job) -> GCN:
    return GCN(graphs.load(config.graph, job.data_dir), config.width, method.of("dropout", (0.0, 0.0)))


def example(config: Config, job: Job) -> tuple[Any, ...]:
    graph = graphs.load(config.graph, job.data_dir)
    return graph.words, graph.splits["train"]


STUDY = Regularizers(
    "regularizers-cora",
    {"smoke": Config(2, 4, points=2, timings=1), "cpu": Config(10, 200), "gpu": Config(20, 200)},
    lambda config: f"{config.graph.capitalize()}, 20 nodes a class, GCN",
    network=network,
    example=example,
    loop=loop,
    tried=Tried(
        (0.003, 0.01, 0.02, 0.05),
        (5e-4, 5e-3),
        ((0.5, 0.5), (0.8, 0.5)),
        (shares(0.5, 0.25), shares(0.5, 0.5)),
        quarter=True,
    ),
    note="Two layers of width 16, the whole graph at every step, Adam. The usual splits; each seed has other weights.",
    data="Cora",
    optimizer="Adam",
    decay=0.0,
    warm=1,
)
BENCHMARK = STUDY.benchmark()
CITESEER = replace(
    STUDY,
    name="regularizers-citeseer",
    presets={name: replace(config, graph="citeseer") for name, config in STUDY.presets.items()},
    tried=replace(STUDY.tried, quarter=False),
    data="Citeseer",
)
BENCHMARK_CITESEER = CITESEER.benchmark()
