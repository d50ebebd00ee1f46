"""Trainings that are interrupted, and the process that goes on with them: `python -m helpers.resume FOLDER`."""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import mrreg
from helpers.optimizers import Net, adamw, hybrid, loss, network, sgd

K = 3
END = 2 * 4 + 3 * 4  # two of the longest cycles in which it is interrupted, and three to go on


def masked(**share: float) -> nn.Module:
    return mrreg.mask(network(), share, k=K)


def thin() -> nn.Module:
    return mrreg.thin(network(), p=0.5, k=K, example_inputs=torch.ones(2, 4))[0]


def langevin(net: Net) -> Optimizer:
    """Noise in both parts."""
    options: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "temperature": 1e-3}
    fast, slow = (
        mrreg.LangevinSGD(net.head.parameters(), **options, seed=5),
        mrreg.LangevinSGD(net.trunk.parameters(), **options),
    )
    return mrreg.Multirate([(fast, 1), (slow, K)], model=net)


class LongerPeriods:
    """A schedule of k in a user's loop: period 2 for five steps, then 4."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.steps = optimizer, -1
        self.step()

    def step(self) -> None:
        self.steps += 1
        self.optimizer.param_groups[1]["period"] = 2 if self.steps < 5 else 4

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        self.steps = saved["steps"]


class Run:
    """One training: a model, its optimizer, and what else has to be saved."""

    def __init__(self, name: str) -> None:
        make_model, make_optimizer = CASES[name]
        self.model = make_model()
        self.optimizer = make_optimizer(self.model)
        self.parts: dict[str, Any] = {"optimizer": self.optimizer}
        if name.startswith(("masks", "thin")):
            mrreg.attach(self.optimizer, self.model, seed=17)
        if name == "periods":
            self.parts["periods"] = LongerPeriods(self.optimizer)
        self.parts["lr"] = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)

    def train(self, steps: Iterable[int]) -> None:
        """The loop of a user."""
        for t in steps:
            torch.autograd.backward(loss(self.model, t))
            for part in self.parts.values():  # the optimizer first
                part.step()
            self.optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        """The model as safetensors, all else as plain data."""
        save_file(self.model.state_dict(), folder / "model.safetensors")
        torch.save({name: part.state_dict() for name, part in self.parts.items()}, folder / "rest.pt")

    def load(self, folder: Path) -> None:
        """Into what was newly built."""
        self.model.load_state_dict(load_file(folder / "model.safetensors"))
        rest = torch.load(folder / "rest.pt", weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(rest[name])

    def result(self) -> dict[str, Any]:
        """Everything that later steps depend on."""
        return {"model": self.model.state_dict(), **{name: part.state_dict() for name, part in self.parts.items()}}


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Optimizer]]] = {
    "masks, SGD": (
        partial(masked, trunk=0.5, head=0.3),
        lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "thin, AdamW": (thin, lambda m: AdamW(m.parameters(), lr=0.01, amsgrad=True)),
    "MultirateSGD": (network, partial(sgd, weight_decay=0.01)),
    "Algorithm 2": (network, partial(sgd, drift=False)),
    "mean gradient": (network, partial(adamw, gradient="mean")),
    "three scales, hybrid": (network, hybrid),
    "Langevin": (network, langevin),
    "periods": (network, sgd),
    "masks and MultirateAdamW": (partial(masked, head=0.5), adamw),
}


def interrupted(folder: Path, name: str) -> list[int]:
    """At which steps the run of a folder was interrupted."""
    return sorted(int(place.name) for place in (folder / name).iterdir())


def go_on(folder: Path) -> None:
    """Load every run at every step in this process, and finish it."""
    torch.manual_seed(int.from_bytes(folder.name.encode()) % 2**32)
    for name in CASES:
        for stop in interrupted(folder, name):
            place = folder / name / str(stop)
            run = Run(name)
            run.load(place)
            torch.rand(stop + 1)  # the global random state is another one each time
            run.train(range(stop, END))
            torch.save(run.result(), place / "result.pt")


if __name__ == "__main__":
    go_on(Path(sys.argv[1]))
