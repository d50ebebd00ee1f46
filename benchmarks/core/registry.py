"""All benchmarks, the most important first. A module is imported only when its benchmark is used."""

import importlib
from dataclasses import dataclass
from typing import Any

from benchmarks.core.errors import UserError
from benchmarks.core.runner import Benchmark


@dataclass(frozen=True)
class Entry:
    """The place of a benchmark (its module has a `BENCHMARK`), what it shows."""

    module: str  # its name below `benchmarks.experiments`, and after a colon the name there, if not BENCHMARK
    summary: str  # one line for `list` and `--help`

    def load(self) -> Benchmark[Any]:
        """Import the module, or say which package is not installed."""
        module, _, name = self.module.partition(":")
        try:
            benchmark = getattr(importlib.import_module(f"benchmarks.experiments.{module}"), name or "BENCHMARK")
        except ModuleNotFoundError as error:
            raise UserError(
                f"benchmarks.experiments.{module}: needs {error.name}. Install it: pip install '.[bench]'"
            ) from error
        assert isinstance(benchmark, Benchmark)
        return benchmark


REGISTERED = {
    "mnist": Entry("mnist.tables", "masks, dropout and SGD on MNIST (figure 8, table A5)"),
    "spiral": Entry("spiral", "slow biases on the 4-turn spiral (figures A11-A13)"),
    "ptb": Entry("ptb.experiment", "masks, dropout and SGD for a transformer on Penn Treebank (figure 9, table A6)"),
    "patches": Entry("patches.experiment", "two learning rates at once on patch-augmented CIFAR-10 (figure 2)"),
    "biases": Entry("biases", "slow biases of a ResNet's last layer (figure A14)"),
    "speed masks": Entry("speed.masks", "what a training step with masks costs"),
    "speed thin": Entry("speed.thin", "what training thin networks saves"),
    "speed memory": Entry("speed.memory", "peak memory of training ResNet-50 and GPT-2 small"),
    "speed optimizer": Entry("speed.optimizer", "what a step of the multirate optimizer costs"),
    "transfer": Entry("transfer.experiment", "fine-tuning pretrained networks (figures 4, 5, 6, A10)"),
    "text": Entry("text.tables", "multirate fine-tuning of a text encoder (figure 7, tables 1, 2, A3, A4)"),
    "text-seconds": Entry("text.seconds", "the same at equal seconds: where multirate fine-tuning pays"),
    "regularizers-digits": Entry("thin.mnist", "thin training, dropout and weight decay on few digits"),
    "regularizers-digits-5000": Entry("thin.mnist:BENCHMARK_MORE", "fewer methods on 5,000 digits"),
    "regularizers-digits-all": Entry("thin.mnist:BENCHMARK_ALL", "fewer methods on all digits"),
    "regularizers-held": Entry("thin.held", "whether to hold a subset and take joint steps, or to draw at every step"),
    "regularizers-characters": Entry("thin.chars", "thin training, dropout and weight decay for characters"),
    "regularizers-characters-300000": Entry("thin.chars:BENCHMARK_MORE", "fewer methods for 300,000 characters"),
    "regularizers-characters-all": Entry("thin.chars:BENCHMARK_ALL", "fewer methods for all characters"),
    "regularizers-held-characters": Entry("thin.held:BENCHMARK_CHARACTERS", "held subsets or new ones, characters"),
    "regularizers-words": Entry("thin.chars:BENCHMARK_WORDS", "thin training, dropout and weight decay for words"),
    "regularizers-vit": Entry("thin.vit", "thin training, dropout, stochastic depth of a vision transformer"),
    "regularizers-vit-14000": Entry("thin.vit:BENCHMARK_MORE", "fewer methods on 14,000 images of CIFAR-10"),
    "regularizers-convolutions": Entry("thin.convolutions", "thin channels and Dropout2d of a ResNet"),
    "regularizers-convolutions-14000": Entry("thin.convolutions:BENCHMARK_MORE", "fewer methods on 14,000 images"),
    "regularizers-table": Entry("thin.tabular", "thin training, dropout and weight decay on a table"),
    "regularizers-housing": Entry("thin.tabular:BENCHMARK_HOUSES", "the same on another table"),
    "regularizers-cora": Entry("thin.graph", "thin training, dropout and weight decay on a citation graph"),
    "regularizers-citeseer": Entry("thin.graph:BENCHMARK_CITESEER", "the same on another graph"),
    "regularizers-finetune": Entry("text.thin", "an encoder fine-tuned with its own dropout, or thin"),
}
