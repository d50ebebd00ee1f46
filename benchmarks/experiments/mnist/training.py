"""The methods of the MNIST benchmarks, their network (one hidden layer) and its training."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.training import Batches, Loop
from benchmarks.data.images import Images
from benchmarks.data.mnist import CLASSES

ORDER_STREAM = 10_000  # added to a seed, so that the order of the images is not tied to the choice of them
CHUNK = 2500  # images evaluated at once
LR = 0.1  # the paper's h


@dataclass(frozen=True)
class Method:
    """One way to train the network: what is left out, if anything, and when."""

    # dropout leaves out units, the others weights
    kind: Literal["SGD", "dropout", "DropConnect", "masks", "every step"] = "SGD"
    p: tuple[float, float] = (0.0, 0.0)  # the probability of being left out, in the input and in the hidden layer
    k: int = 5  # steps of a mask's cycle
    boost: float | None = None  # how many times larger a slow weight's step is; None is k, as in the paper


class DropWeights(nn.Module):
    """A layer of which a fresh random part of the weights is zero in every training step, and none in evaluation.

    With `rescale` the kept weights are divided by 1 - p: DropConnect, with one mask a batch. Without, it is what
    remains of the paper's masks when the multirate part is taken away: no held weights, no joint step.
    """

    def __init__(self, layer: nn.Module, p: float, *, rescale: bool) -> None:
        super().__init__()
        self.layer, self.p, self.rescale = layer, p, rescale

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer with some of its weights."""
        if not self.training:
            return self.layer(x)  # type: ignore[no-any-return]
        weight = self.layer.get_parameter("weight")
        kept = torch.empty_like(weight).bernoulli_(1 - self.p)
        if self.rescale:
            kept /= 1 - self.p
        out: Tensor = torch.func.functional_call(self.layer, {"weight": weight * kept}, (x,))
        return out


def network(method: Method, seed: int, sizes: tuple[int, int, int]) -> nn.Module:
    """Return the network of a method, whose weights depend on nothing but the seed and the sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second = nn.Linear(*sizes[:2]), nn.Linear(*sizes[1:])
    p_in, p_hidden = method.p
    match method.kind:
        case "SGD":
            return nn.Sequential(first, nn.ReLU(), second)
        case "dropout":
            return nn.Sequential(nn.Dropout(p_in), first, nn.ReLU(), nn.Dropout(p_hidden), second)
        case "masks":
            boost = method.k if method.boost is None else method.boost
            return mrreg.mask(
                nn.Sequential(first, nn.ReLU(), second), {"0": p_in, "2": p_hidden}, method.k, boost=boost
            )
    rescale = method.kind == "DropConnect"
    return nn.Sequential(
        DropWeights(first, p_in, rescale=rescale), nn.ReLU(), DropWeights(second, p_hidden, rescale=rescale)
    )


def begin(method: Method, digits: Images, seed: int, batch: int, width: int, momentum: float = 0.0) -> Loop:
    """Return the training of a freshly drawn network; initial weights, order and masks follow from the seed."""
    model = network(method, seed, (digits.x.shape[1], width, CLASSES)).to(digits.x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    torch.manual_seed(seed)  # dropout draws from the global generator
    if method.kind == "masks":
        mrreg.attach(optimizer, model, seed=seed)
    examples = torch.randperm(len(digits.y), generator=torch.Generator().manual_seed(seed))

    def order(generator: torch.Generator) -> list[Tensor]:
        index = examples[torch.randperm(len(examples), generator=generator)].to(digits.x.device)
        return list(index.split(batch))  # type: ignore[no-untyped-call]

    batches = Batches(
        order, lambda index: (digits.x[index], digits.y[index]), torch.Generator().manual_seed(ORDER_STREAM + seed)
    )
    return Loop(model, optimizer, batches, {"test": lambda: digits.held_out(CHUNK)})
