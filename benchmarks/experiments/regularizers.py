"""Studies of thin training beside dropout, weight decay and stochastic depth: one list of methods, one search for all.

Goes beyond the paper. Every method gets four trials, its learning rate among them, on validation data and with seeds
that the comparison does not use; every training counts where it is best on validation data (early stopping). Methods
are compared at equal steps and at equal seconds. Thin training is called as users call it: "thin, defaults" gives
`mrreg.thin` nothing but the inputs. One file for each task says what the network is, where dropout is in it, and how it
is trained.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, Options, Search, evenly, least_loss
from benchmarks.core.records import Config
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Shown
from benchmarks.core.study import Study, at_best_validation
from benchmarks.core.training import Loop


@dataclass(frozen=True)
class Method:
    """One way to regularize.

    Args:
        kind: What is left out: units or entries for each example (dropout), branches (depth), units for the batch
            (thin).
        p: Its share. For thin training as in `mrreg.thin`, a mapping as pairs; for networks with
            dropout of their inputs a pair, of the inputs and of hidden units.
        k, boost, joint: As in `mrreg.thin` and `mrreg.attach`.
        lr: The largest learning rate.
        weight_decay: None is the task's own.
        optimizer: None is the task's own.
        until: The share of the steps after which masks are taken out, and dropout is off.
        shared: Dropout draws once for the whole batch, as masks do.
    """

    kind: Literal["none", "dropout", "depth", "thin"] = "none"
    p: Any = 0.0
    k: int = 5
    boost: float | None = None
    joint: bool = True
    lr: float = 0.0
    weight_decay: float | None = None
    optimizer: str | None = None
    until: float = 1.0
    shared: bool = False

    def of(self, kind: str, nothing: Any = 0.0) -> Any:
        """Return p for a method of this kind, nothing for others."""
        return self.p if self.kind == kind else nothing


NONE, DROPOUT, DECAY, DEPTH = "none", "dropout", "weight decay", "stochastic depth"
DEFAULTS, QUARTER = "thin, defaults", "thin, a quarter of the units"
THIN, FRESH, ENDING = "thin, tuned", "thin, new units at every step", "thin, tuned, whole for the last tenth"
SHARED, OFF = "dropout, one draw for the batch", "dropout, off for the last tenth"
BOTH, THIN_DECAY = "dropout and weight decay", "thin and weight decay"
METHODS = {
    NONE: Method(),
    DECAY: Method(),
    DROPOUT: Method("dropout"),
    DEPTH: Method("depth"),
    DEFAULTS: Method("thin", None),
    QUARTER: Method("thin", 0.25),  # once the defaults
    THIN: Method("thin"),
    FRESH: Method("thin", k=1, joint=False),
    BOTH: Method("dropout"),
    THIN_DECAY: Method("thin"),
    ENDING: Method("thin", until=0.9),
    SHARED: Method("dropout", shared=True),
    OFF: Method("dropout", until=0.9),
}
LIKE = {ENDING: THIN, SHARED: DROPOUT, OFF: DROPOUT}  # what takes the options and the seconds of another method
FEW = NONE, DECAY, DROPOUT, DEFAULTS, THIN  # of studies with more data
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": torch.optim.SGD,
    "momentum": lambda parameters, lr, weight_decay: torch.optim.SGD(parameters, lr, 0.9, weight_decay=weight_decay),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
}


class Timed(Config, Protocol):
    """A configuration of such a study; `points` are evaluations, `timings` turns in which steps are timed."""

    @property
    def steps(self) -> int: ...
    @property
    def points(self) -> int: ...
    @property
    def timings(self) -> int: ...


C = TypeVar("C", bound=Timed)
_GROUPS: dict[object, mrreg.ThinReport] = {}


@dataclass(frozen=True)
class Tried:
    """What is tried: four learning rates, ascending, of which others take the middle two; two values of all else."""

    rates: tuple[float, float, float, float]
    decays: tuple[float, float]
    dropout: tuple[Any, Any]
    thin: tuple[Any, Any]
    depth: tuple[float, ...] = ()  # empty where the network has no branches
    quarter: bool = False

    def grid(self) -> dict[str, list[Options]]:
        """Return four trials for each method."""
        rates: list[Options] = [{"lr": lr} for lr in self.rates]
        middle = rates[1:3]

        def with_rates(name: str, values: Sequence[Any]) -> list[Options]:
            return [{name: value, **lr} for value in values for lr in middle]

        def with_decay(values: Sequence[Any]) -> list[Options]:
            return [{"p": values[0], "weight_decay": decay, **lr} for decay in self.decays for lr in middle]

        found: dict[str, list[Options]] = {
            NONE: rates,
            DECAY: with_rates("weight_decay", self.decays),
            DROPOUT: with_rates("p", self.dropout),
        }
        found |= {DEPTH: with_rates("p", self.depth)} if self.depth else {}
        found |= {DEFAULTS: rates} | ({QUARTER: rates} if self.quarter else {})
        found |= {THIN: with_rates("p", self.thin), FRESH: with_rates("p", self.thin)}
        return found | {BOTH: with_decay(self.dropout), THIN_DECAY: with_decay(self.thin)}


@dataclass(frozen=True)
class Regularizers(Generic[C]):
    """One task: its network and data, what is tried for each method, and what is shown."""

    name: str
    presets: Mapping[str, C]
    task: Callable[[C], str]  # what is trained on what, in the documentation
    # the network of a method with its dropout, if that is what it does; the same weights for all methods of a seed
    network: Callable[[C, Method, Job], nn.Module]
    example: Callable[[C, Job], Any]  # inputs with which groups of units are looked for
    loop: Callable[[C, nn.Module, Optimizer, int, Job], Loop]  # the data, and the rest of the training
    tried: Tried
    note: str
    data: str
    optimizer: str = "AdamW"
    decay: float = 0.01  # of methods that have none of their own
    loss: str = ""  # its unit, where methods are compared by a loss
    warm: int = 50  # steps in which the learning rate rises
    methods: Collection[str] = tuple(METHODS)  # those that are compared, as far as the network has them

    def with_more(self, name: str, config: C, note: str) -> "Regularizers[C]":
        """Return the study of few methods with more data."""
        presets = {"smoke": self.presets["smoke"], "cpu": config}
        return replace(self, name=name, presets=presets, note=note, methods=FEW)

    def grid(self) -> dict[str, list[Options]]:
        """Return four trials for each of the methods that have their own."""
        return {name: trials for name, trials in self.tried.grid().items() if name in self.methods}

    @property
    def like(self) -> dict[str, str]:
        """The other methods, each with the one whose options it takes."""
        return {name: source for name, source in LIKE.items() if name in self.methods}

    def comparisons(self, config: C) -> list[Comparison[Method]]:
        grid = self.grid()
        score: dict[str, Any] = {"score": least_loss} if self.loss else {}
        # a timing of their own, since the defaults may change when all else has been measured
        timed = {"costs": [name for name in grid if name != DEFAULTS], "costs of the defaults": [NONE, DEFAULTS]}
        return [
            Comparison(
                {name: METHODS[name] for name in [*names, *(self.like if THIN in names else ())]},
                config.seeds, evenly(config.steps, config.points),
                Costs(NONE, config.timings, name=costs, charge=lambda name, *_: self.like.get(name, name)),
                Search({name: grid[name] for name in names}, self.like, **score),
                splits=("validation", "test"),
            )
            for costs, names in timed.items()
        ]  # fmt: skip

    def build(self, config: C, method: Method, seed: int, job: Job) -> Loop:
        torch.manual_seed(seed)
        model = self.network(config, method, job)
        if method.shared:
            draw_once(model)
        if method.kind == "thin":
            groups = self._groups(config, method.p, job)
            model, _ = mrreg.thin(model, k=method.k, boost=method.boost, plan=groups)
        model = model.to(job.device)
        decay = self.decay if method.weight_decay is None else method.weight_decay
        make = OPTIMIZERS[method.optimizer or self.optimizer]
        optimizer = make(model.parameters(), lr=method.lr or self.tried.rates[1], weight_decay=decay)
        if method.kind == "thin":
            mrreg.attach(optimizer, model, seed=seed, joint=method.joint)
        torch.manual_seed(seed)  # dropout draws from the global generator
        loop = self.loop(config, model, optimizer, seed, job)
        warm = warming(optimizer, self.warm)

        def before(step: int) -> None:
            warm(step)
            if step >= round(method.until * config.steps):  # at every one, as a resumed training has masks again
                mrreg.unwrap(model)
                turn_off(model)

        loop.before = before if method.until < 1 else warm
        return loop

    def _groups(self, config: C, p: Any, job: Job) -> mrreg.ThinReport:
        key = (self.name, config, p, job.data_dir)
        if key not in _GROUPS:
            model, shares = self.network(config, Method(), job), dict(p) if isinstance(p, tuple) else p
            _GROUPS[key] = mrreg.thin(model, shares, example_inputs=self.example(config, job))[1]
        return _GROUPS[key]

    def benchmark(self) -> Benchmark[C]:
        """Return the study with what the report shows of it."""
        study = Study(
            self.name, self.presets, self.comparisons, self.build, "loss" if self.loss else "accuracy",
            bool(self.loss), at_best_validation, data=self.data,
        )  # fmt: skip
        shown = [self._shown(config, preset) for preset, config in self.presets.items()]
        return study.benchmark([part for each in shown for part in each.sections(NONE)], shown)

    def _shown(self, config: C, preset: str) -> Shown:
        names = [*self.grid(), *self.like]
        ours, rivals = (DEFAULTS, THIN), (NONE, DROPOUT, DECAY, DEPTH)
        unit = f"nats a {self.loss}"
        own: dict[str, Any] = {"metric": "loss", "unit": unit, "digits": 3, "lower": True} if self.loss else {}
        own |= {"ylabel": f"test loss [{unit}]", "words": "a smaller loss than"} if self.loss else {}
        pairs = [(one, other) for one in ours for other in rivals]
        pairs += [(THIN, FRESH), (ENDING, THIN), (OFF, DROPOUT), (ENDING, OFF), (FRESH, SHARED), (SHARED, DROPOUT)]
        pairs += [(THIN_DECAY, THIN), (BOTH, DROPOUT), (THIN_DECAY, BOTH), (DROPOUT, NONE)]
        return Shown(
            self.task(config), {name: name for name in names},
            [pair for pair in pairs if set(pair) <= set(names)], note=self.note,
            presets=frozenset({preset}), task=self.task(config), **own,
            against=[(one, rival) for one in ours for rival in (DROPOUT, NONE, DECAY)],
        )  # fmt: skip


class OneDraw(nn.Module):
    """Dropout of the same features for all examples and places.

    Args:
        p: Their share.
        features: Their dimension.
    """

    def __init__(self, p: float, features: int) -> None:
        super().__init__()
        self.p, self.features = p, features

    def forward(self, x: Tensor) -> Tensor:
        """Return x with some features zero and the others larger."""
        shape = [1] * x.ndim
        shape[self.features] = x.shape[self.features]
        return x * F.dropout(x.new_ones(shape), self.p, self.training)


def turn_off(model: nn.Module) -> None:
    """Let all dropout have a p of 0, in place."""
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0


def draw_once(model: nn.Module) -> None:
    """Let dropout modules draw once for the whole batch, in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout | nn.Dropout2d):
                setattr(parent, name, OneDraw(child.p, -1 if isinstance(child, nn.Dropout) else 1))


def warming(optimizer: Optimizer, steps: int) -> Callable[[int], None]:
    """Return a schedule that raises each learning rate to what it is now, where it stays.

    So one training serves every budget of steps and seconds.
    """
    rates = [group["lr"] for group in optimizer.param_groups]

    def before(step: int) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min((step + 1) / steps, 1.0)

    return before
