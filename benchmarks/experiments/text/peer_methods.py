"""Methods beside multirate fine-tuning that are to be cheap: LoRA, BAdam, random layers, frozen layers."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.core.comparison import Search
from benchmarks.experiments.text.encoder import Classifier
from benchmarks.experiments.text.recipes import Prepare, Recipe, Trainee

SWITCH = 8  # steps between two choices of layers, for BAdam and random layers
ACTIVE = 2  # layers that random layers train at once
RANK, ALPHA = 8, 16
ATTENTION = ("query", "value", "q_lin", "v_lin")  # what LoRA changes, as BERT and DistilBERT call it

RATES = (1.0, 3.0)  # times the lr of the configuration
LORA_RATE = 10.0  # LoRA wants about ten times the lr of full fine-tuning


def recipe(**options: Any) -> Prepare:
    """A `Recipe` with AdamW."""
    return lambda net, lr, seed: Recipe(optimizer="AdamW", lr=lr, **options).prepare(net)


def low_rank(net: Classifier, lr: float, seed: int) -> Trainee:
    """LoRA of the package `peft`: matrices of rank 8 beside queries and values, and the classifier."""
    import peft  # needed by this method alone, and not by the report of finished runs

    names = [name.rpartition(".")[2] for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    chosen = [name for name in ATTENTION if name in names]
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=chosen, modules_to_save=["fc"])
    model: nn.Module = peft.get_peft_model(net, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Trainee(model, torch.optim.AdamW(trained, lr=lr, weight_decay=0.0))


def block_adam(net: Classifier, lr: float, seed: int) -> Trainee:
    """BAdam of the package `badam`: one layer at a time, last to first, the classifier always, embeddings never.

    The classifier's moments start again with every layer, as those of all that the package trains. The first layer has
    one step fewer than the others.
    """
    import badam  # as peft

    class Quiet(badam.BlockOptimizer):  # type: ignore[misc]  # the package has no types
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
    return Trainee(net, optimizer, resumable=False)  # its place among the layers is in no state


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

    def step(self) -> None:
        """Count a step, and draw where it is time."""
        self._steps += 1
        if self._steps % SWITCH == 0:
            self._draw()

    def _draw(self) -> None:
        self._activate(torch.randperm(len(self._layers), generator=self._generator)[:ACTIVE].tolist())

    def _activate(self, active: list[int]) -> None:
        self._active = active
        for index, layer in enumerate(self._layers):
            layer.requires_grad_(index in active)
            if index not in active:
                for parameter in layer.parameters():
                    self._optimizer.state.pop(parameter, None)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "active": self._active, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self._generator.set_state(state["generator"])
        self._activate(state["active"])


def random_layers(net: Classifier, lr: float, seed: int) -> Trainee:
    """Random layers with AdamW."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.0)
    return Trainee(net, optimizer, RandomLayers(net, optimizer, seed))


@dataclass(frozen=True)
class Peer:
    """A method of the comparison."""

    prepare: Prepare
    rate: float = 1.0  # multiplies all its candidates for the lr
    lr: float = 0.0  # the one that it has


FULL, FROZEN, HALF = "full fine-tuning", "lower half frozen", "half fast, k = 5"
METHODS = {
    FULL: Peer(recipe()),
    HALF: Peer(recipe(fast="half", k=5, slow_lr="per_gradient")),
    FROZEN: Peer(recipe(trained="half")),
    "LoRA": Peer(low_rank, LORA_RATE),
    "BAdam": Peer(block_adam),
    "random layers": Peer(random_layers),
}


def search(lr: float, trials: int) -> Search:
    """Return as many learning rates for everyone, judged at equal seconds on training texts held out."""
    return Search(
        {name: [{"lr": lr * peer.rate * rate} for rate in RATES[:trials]] for name, peer in METHODS.items()},
        trial=lambda name, options: f"lr {options['lr']:g}, {name}",
        at="seconds",
        score=lambda result: float(result["held out"]),
    )
