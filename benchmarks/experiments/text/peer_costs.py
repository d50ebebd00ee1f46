"""What steps of fine-tuning cost, by their kind, in seconds and in bytes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from benchmarks.experiments.text.training import Batch, Trainee, one_step

MIB = 2**20
Cost = dict[str, float]
"""Seconds of a step by its kind."""


def kind(optimizer: Optimizer) -> str:
    """Which kind of step comes next: "full" or "fast" with two rates, else "full"."""
    return "full" if all(getattr(optimizer, "due", (True,))) else "fast"


class Meter:
    """Adds up what the steps of a run cost, as measured beforehand: the same on every machine and under every load.

    Args:
        cost: Seconds of a step by kind.
        budget: Seconds that may be spent.
    """

    def __init__(self, cost: Cost, budget: float) -> None:
        self._cost, self._budget = cost, budget
        self.spent = 0.0
        self.steps = 0

    def progress(self) -> float:
        return self.spent / self._budget

    def is_full(self, optimizer: Optimizer) -> bool:
        """Whether most of the next step would lie beyond the budget; the first is always taken."""
        return self.steps > 0 and self.spent + self._cost[kind(optimizer)] / 2 > self._budget

    def step(self, trainee: Trainee, batch: Batch) -> None:
        """Take one step."""
        self.spent += self._cost[kind(trainee.optimizer)]
        self.steps += 1
        one_step(trainee, batch)


def step_costs(trainees: Mapping[str, Trainee], batches: Sequence[Batch], passes: int) -> dict[str, Cost]:
    """Seconds of a step of each method by kind, all methods in turns on each batch; the first step does not count.

    Batches differ in length: each kind's median on each batch counts, so that no kind profits from short batches.
    """
    for trainee in trainees.values():
        one_step(trainee, batches[0])
    times: dict[str, dict[str, dict[int, list[float]]]] = {
        name: defaultdict(lambda: defaultdict(list)) for name in trainees
    }
    for _ in range(passes):
        for place, batch in enumerate(batches):
            for name, trainee in trainees.items():
                which = kind(trainee.optimizer)
                times[name][which][place].append(one_step(trainee, batch))
    return {
        name: {which: fmean(median(each) for each in places.values()) for which, places in kinds.items()}
        for name, kinds in times.items()
    }


def most_bytes(trainee: Trainee, batch: Batch, steps: int) -> float:
    """The most MiB that training holds beyond the network's weights, over some steps on one batch.

    On CPU, of each step: what autograd saves, plus gradients, plus the optimizer's tensors. On CUDA, what torch has
    allocated at the peak, less what was there before but for the optimizer's tensors.
    """
    return max(_bytes_of_step(trainee, batch) for _ in range(steps)) / MIB


def _bytes_of_step(trainee: Trainee, batch: Batch) -> int:
    device = batch[0].device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        held = _optimizer_bytes(trainee)
        one_step(trainee, batch)
        return torch.cuda.max_memory_allocated(device) - before + held
    ids, mask, y = batch
    weights = {parameter.untyped_storage().data_ptr() for parameter in trainee.model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    trainee.model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = F.cross_entropy(trainee.model(ids, mask), y)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = sum(p.grad.nbytes for p in trainee.model.parameters() if p.grad is not None)
    trainee.optimizer.step()
    held = _optimizer_bytes(trainee)
    trainee.optimizer.zero_grad()
    trainee.after()
    return sum(saved.values()) + gradients + held


def _optimizer_bytes(trainee: Trainee) -> int:
    """Of the state, and of copies of the weights that an optimizer holds."""
    base: Optimizer = getattr(trainee.optimizer, "base_optimizer", trainee.optimizer)
    known = set(trainee.model.parameters())
    copies = [p for group in base.param_groups for p in group["params"] if p not in known]
    return sum(tensor.nbytes for tensor in [*_tensors(base), *copies])


def _tensors(optimizer: Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
