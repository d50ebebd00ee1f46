"""Trainings that are interrupted, and the process that goes on with them: `python -m helpers.resume FOLDER`."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import mrreg

K = 3
END = 2 * 4 + 3 * 4  # two of the longest cycles in which it is interrupted, and three to go on


def network() -> nn.Sequential:
    torch.manual_seed(3)
    layers = {"stem": nn.Linear(4, 8), "first": nn.Tanh(), "trunk": nn.Linear(8, 8), "second": nn.Tanh()}
    return nn.Sequential(OrderedDict(layers | {"head": nn.Linear(8, 2)}))


def masked(structure: Any = "weight", **options: Any) -> nn.Module:
    return mrreg.mask(network(), {"trunk": 0.5, "head": 0.3}, k=K, structure=structure, **options)


def thin() -> nn.Module:
    return mrreg.thin(network(), p=0.5, k=K, example_inputs=torch.ones(2, 4))[0]


def slow_stem(model: nn.Module, kind: Any, **options: Any) -> Optimizer:
    optimizer: Optimizer = kind(mrreg.split(model, slow="stem"), k=K, model=model, **options)
    return optimizer


def three_scales(model: Any) -> Optimizer:
    """AdamW, SGD with momentum, plain SGD, at periods 1, 2 and 4."""
    parts = (
        (AdamW(model.head.parameters(), lr=0.01), 1),
        (SGD(model.trunk.parameters(), lr=0.1, momentum=0.9), 2),
        (SGD(model.stem.parameters(), lr=0.1), 4),
    )
    return mrreg.Multirate(parts, model=model)


def langevin(model: Any) -> Optimizer:
    """Noise in both parts."""
    rest = [*model.trunk.parameters(), *model.head.parameters()]
    options: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "temperature": 1e-3}
    parts = (mrreg.LangevinSGD(rest, **options, seed=5), 1), (mrreg.LangevinSGD(model.stem.parameters(), **options), K)
    return mrreg.Multirate(parts, model=model)


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
            generator = torch.Generator().manual_seed(t)
            x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)
            loss: Tensor = (self.model(x) - y).square().mean()
            torch.autograd.backward(loss)
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
    "masks, SGD": (masked, lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)),
    "thin, AdamW": (thin, lambda m: AdamW(m.parameters(), lr=0.01, amsgrad=True)),
    "MultirateSGD": (network, lambda m: slow_stem(m, mrreg.MultirateSGD, lr=0.1, momentum=0.9, weight_decay=0.01)),
    "Algorithm 2": (network, lambda m: slow_stem(m, mrreg.MultirateSGD, lr=0.1, momentum=0.9, drift=False)),
    "mean gradient": (network, lambda m: slow_stem(m, mrreg.MultirateAdamW, lr=0.01, gradient="mean")),
    "three scales, hybrid": (network, three_scales),
    "Langevin": (network, langevin),
    "periods": (network, lambda m: slow_stem(m, mrreg.MultirateSGD, lr=0.1, momentum=0.9)),
    "masks and MultirateAdamW": (masked, lambda m: slow_stem(m, mrreg.MultirateAdamW, lr=0.01)),
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
