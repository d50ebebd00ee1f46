"""What people use instead of two rates when fine-tuning is to be cheap: LoRA, BAdam, random layers, frozen layers."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.core.errors import UserError
from benchmarks.experiments.text.encoder import Classifier
from benchmarks.experiments.text.recipes import Recipe
from benchmarks.experiments.text.training import Trainee

SWITCH = 8  # steps between two choices of layers, for BAdam and random layers
ACTIVE = 2  # layers that random layers train at once
RANK, ALPHA = 8, 16
ATTENTION = ("query", "value", "q_lin", "v_lin")  # what LoRA changes, as BERT and DistilBERT call it

Progress = Callable[[], float]
"""Which part of its budget a method has spent, 0 to 1; what a schedule of k goes by."""
Prepare = Callable[[Classifier, float, int, Progress], Trainee]
"""From a freshly loaded classifier, an lr, a seed and the progress: what is trained, with what."""


def recipe(**options: Any) -> Prepare:
    """A `Recipe` with AdamW."""
    return lambda net, lr, seed, progress: Recipe(optimizer="AdamW", lr=lr, **options).prepare(net)


def _needed(package: str) -> Any:
    """A package that nothing else needs, the report of finished runs least of all."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise UserError(f"text-peers: needs {error.name}. Install it: pip install '.[bench]'") from error


def low_rank(net: Classifier, lr: float, seed: int, progress: Progress) -> Trainee:
    """LoRA of the package `peft`: matrices of rank 8 beside queries and values, and the classifier."""
    peft = _needed("peft")
    names = [name.rpartition(".")[2] for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    chosen = [name for name in ATTENTION if name in names]
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=chosen, modules_to_save=["fc"])
    model: nn.Module = peft.get_peft_model(net, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Trainee(model, torch.optim.AdamW(trained, lr=lr, weight_decay=0.0))


def block_adam(net: Classifier, lr: float, seed: int, progress: Progress) -> Trainee:
    """BAdam of the package `badam`: one layer at a time, last to first, the classifier always, embeddings never.

    The classifier's moments start again with every layer, as those of all that the package trains. The first layer has
    one step fewer than the others.
    """
    package = _needed("badam")

    class Quiet(package.BlockOptimizer):  # type: ignore[name-defined,misc]  # the package has no types
        """Prints nothing when it goes to the next layer."""

        def switch_trainable_params(self, verbose: int | None = None) -> None:
            super().switch_trainable_params(0)

    names = {module: name for name, module in net.named_modules()}
    head, *layers = net.part("layers")
    blocks = [[f"{names[layer]}."] for layer in layers]
    base = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "BAdam expect model to be loaded in fp16", UserWarning)
        optimizer = Quiet(
            base, list(net.named_parameters()), blocks, SWITCH, active_modules=[f"{names[head]}."], verbose=0
        )
    return Trainee(net, optimizer)


class RandomLayers:
    """Trains a few layers at a time, drawn anew every so many steps; embeddings and classifier train always.

    Layers that rest want no gradient and lose their optimizer's state, which is where the memory is saved.

    Args:
        net: Whose layers are drawn.
        optimizer: Over all its parameters.
        seed: Of the draws.

    References:
        Pan et al., LISA: Layerwise Importance Sampling for Memory-Efficient Large Language Model Fine-Tuning, 2024
        (arXiv 2403.17919), algorithm 1.
    """

    def __init__(self, net: Classifier, optimizer: torch.optim.Optimizer, seed: int) -> None:
        self._layers = net.part("layers")[1:]
        self._optimizer = optimizer
        self._generator = torch.Generator().manual_seed(seed)
        self._steps = 0
        self._draw()

    def after_step(self) -> None:
        """Count a step, and draw where it is time."""
        self._steps += 1
        if self._steps % SWITCH == 0:
            self._draw()

    def _draw(self) -> None:
        active = torch.randperm(len(self._layers), generator=self._generator)[:ACTIVE].tolist()
        for index, layer in enumerate(self._layers):
            layer.requires_grad_(index in active)
            if index not in active:
                for parameter in layer.parameters():
                    self._optimizer.state.pop(parameter, None)


def random_layers(net: Classifier, lr: float, seed: int, progress: Progress) -> Trainee:
    """Random layers with AdamW."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.0)
    return Trainee(net, optimizer, RandomLayers(net, optimizer, seed).after_step)
