"""Names of the benchmarks, the most important first. A module is imported only when its benchmark is used."""

import importlib
from dataclasses import dataclass
from typing import Any

from benchmarks.core.errors import UserError
from benchmarks.core.runner import Benchmark


@dataclass(frozen=True)
class Entry:
    """Where a benchmark is (the module has a `BENCHMARK`), what it shows, and its share of a common budget.

    Args:
        module: Its name below `benchmarks`.
        summary: One line for `list` and `--help`.
        share: How much of the budget of `all` it gets, relative to the others.
    """

    module: str
    summary: str
    share: float = 1.0

    def load(self) -> Benchmark[Any]:
        """Import the module.

        Raises:
            UserError: If it needs a package that is not installed.
        """
        try:
            benchmark = importlib.import_module(f"benchmarks.experiments.{self.module}").BENCHMARK
        except ModuleNotFoundError as error:
            raise UserError(
                f"benchmarks.experiments.{self.module}: needs {error.name}. Install it: pip install '.[bench]'"
            ) from error
        assert isinstance(benchmark, Benchmark)
        return benchmark


REGISTERED = {
    "mnist": Entry("mnist.tables", "masks, dropout and SGD on MNIST (figure 8, table A5)", share=3),
    "spiral": Entry("spiral.experiment", "slow biases on the 4-turn spiral (figures A11-A13)"),
    "ptb": Entry(
        "ptb.experiment", "masks, dropout and SGD for a transformer on Penn Treebank (figure 9, table A6)", share=3
    ),
    "speed finetune": Entry(
        "speed.finetune", "how much faster fine-tuning gets, and how well the audit predicts it", share=3
    ),
    "patches": Entry(
        "patches.experiment", "two learning rates at once on patch-augmented CIFAR-10 (figure 2)", share=2
    ),
    "biases": Entry("biases", "slow biases of a ResNet's last layer (figure A14)", share=2),
    "speed masks": Entry("speed.masks", "what a training step with masks costs"),
    "speed optimizer": Entry("speed.optimizer", "what a step of the multirate optimizer costs", share=0.5),
    "transfer": Entry("transfer.experiment", "fine-tuning pretrained networks (figures 4, 5, 6, A10)", share=3),
    "transfer-digits": Entry("transfer.digits", "a network pretrained on CIFAR-10 fine-tuned on MNIST"),
    "text": Entry("text.tables", "multirate fine-tuning of a text encoder (figure 7, tables 1, 2, A3, A4)", share=2),
    "text-seconds": Entry("text.seconds", "the same at equal seconds: where it pays", share=3),
    "text-peers": Entry("text.peers", "multirate against LoRA, BAdam, random layers, and a changing k", share=2),
    "mnist-small": Entry("mnist.small", "the same on 1,000 and 5,000 images, everyone's p tuned", share=2),
    "mnist-search": Entry("mnist.search", "which reading of the paper gives its MNIST tables"),
    "scale": Entry("scale", "bytes and seconds of data-parallel training, and what many GPUs would save", share=0.5),
}
