"""Studies of thin training beside dropout and other regularizers: a network, its data, and methods from one list.

Goes beyond the paper. Every method that has options gets as many trials as the others; methods are compared at equal
steps and at equal seconds. One file for each task says what the network is, where dropout is in it, which units thin
training leaves out, and how it is trained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, Options, Search, least_loss
from benchmarks.core.records import Config
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Shown
from benchmarks.core.study import Study, at_best_validation, last
from benchmarks.core.training import Loop


@dataclass(frozen=True)
class Method:
    """One way to regularize.

    Args:
        kind: What is left out: units for each example (dropout), branches (depth), units for the batch and k - 1 steps
            (thin), units for the batch and one step with no joint step (fresh), single weights (entries).
        p: Its shares, as the task understands them: of one kind of units, or of inputs and of hidden units.
        heads: The share of attention heads that thin training leaves out.
        k: Steps per cycle.
        boost: Factor of the joint step; None is k, with which all records were made.
        weight_decay: None is the task's own.
        beside: Dropout's p of the hidden units that thin training keeps.
        rescale: As in `mrreg.thin`.
    """

    kind: Literal["none", "dropout", "depth", "thin", "fresh", "entries"] = "none"
    p: Any = 0.0
    heads: float = 0.0
    k: int = 5
    boost: float | None = None
    weight_decay: float | None = None
    beside: float = 0.0
    rescale: bool = True

    def of(self, *kinds: str) -> Any:
        """Return p for a method of some kinds, 0 for others."""
        return self.p if self.kind in kinds else 0.0


NONE, DROPOUT, DECAY, DEPTH = "none", "dropout", "weight decay", "stochastic depth"
THIN, BOOST_1 = "thin, k = 5", "thin, k = 5, boost 1"
METHODS = {
    NONE: Method(),
    DROPOUT: Method("dropout"),
    THIN: Method("thin"),
    DECAY: Method(),
    BOOST_1: Method("thin", boost=1.0),
    DEPTH: Method("depth"),
    "thin, k = 2": Method("thin", k=2),
    "thin, k = 10": Method("thin", k=10),
    "thin, k = 10, boost 1": Method("thin", k=10, boost=1.0),
    "fresh draw at every step": Method("fresh"),
    "masks by entry": Method("entries"),
    f"{THIN}, and weight decay": Method("thin", weight_decay=1e-3),
    f"{THIN}, and dropout": Method("thin", beside=0.2),
    "dropout and weight decay": Method("dropout", weight_decay=1e-3),
}
FEW = (NONE, DROPOUT, THIN)
USUAL = (*FEW, DECAY, BOOST_1)


class Timed(Config, Protocol):
    """A configuration of such a study; `timings` are turns in which steps are timed, `trials` seeds of each option."""

    @property
    def timings(self) -> int: ...


C = TypeVar("C", bound=Timed)
_GROUPS: dict[object, mrreg.ThinReport] = {}


@dataclass(frozen=True)
class Setting:
    """One comparison of a configuration: how long, of which methods; `value` tells the task which one it is."""

    budgets: tuple[int, ...]
    methods: tuple[str, ...] = FEW
    name: str = ""  # in the record
    value: Any = None
    task: str = ""  # what is trained on what, in the documentation
    title: str = ""  # of the sections of the report


@dataclass(frozen=True)
class Regularizers(Generic[C]):
    """One study: the task, what is tried for each method, and what is shown."""

    name: str
    presets: Mapping[str, C]
    settings: Callable[[C], Sequence[Setting]]
    # the network of a method with its dropout, if that is what it does; the same weights for all methods of a seed
    network: Callable[[C, Method, Job], nn.Module]
    example: Callable[[C], Any]  # inputs with which groups of units are looked for
    shares: Callable[[Method, Job], Mapping[str, float] | float]  # of the units that thin training leaves out, by kind
    optimizer: Callable[[C, nn.Module, Options], Optimizer]  # takes a weight decay, or nothing for the task's own
    loop: Callable[[C, nn.Module, Optimizer, int, Job], Loop]  # the data, and the rest of the training
    grid: Mapping[str, Sequence[Options]]  # what is tried; every other thin method takes what is found for `THIN`
    note: str
    data: str | Callable[[C], str]
    at: Literal["steps", "seconds"] = "seconds"  # where trials end
    scheduled: bool = False
    loss: str = (
        ""  # its unit, where methods are compared by a loss; the test loss counts where validation's is smallest
    )
    trials: int = 1  # seeds of each option
    cycle: int = 10  # steps of a turn of the timing
    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)

    def comparisons(self, config: C) -> list[Comparison[Method]]:
        found = []
        for setting in self.settings(config):
            thin = [name for name in setting.methods if name.startswith("thin") and name not in self.grid]
            like = dict.fromkeys(thin if THIN in self.grid else (), THIN)
            grid = {name: self.grid[name] for name in setting.methods if name in self.grid}
            score: dict[str, Any] = {"score": least_loss} if self.loss else {}
            comparison = Comparison(
                {name: self.methods[name] for name in setting.methods}, config.seeds, setting.budgets,
                Costs(NONE, config.timings, self.cycle, f"costs {setting.name}".strip()),
                Search(grid, like, setting.name, self.trials, self.at, **score) if grid else None,
                setting=setting.value, prefix=setting.name and f"{setting.name}: ", scheduled=self.scheduled,
                splits=("validation", "test") if self.loss else ("test",),
            )  # fmt: skip
            found.append(comparison)
        return found

    def build(self, config: C, method: Method, seed: int, job: Job) -> Loop:
        torch.manual_seed(seed)
        model = self.network(config, method, job)
        if method.kind == "thin":
            boost = method.k if method.boost is None else method.boost
            groups = self._groups(config, replace(method, k=1, boost=None, weight_decay=None), job)
            model, _ = mrreg.thin(model, k=method.k, boost=boost, plan=groups, rescale=method.rescale)
        model = model.to(job.device)
        decay = {} if method.weight_decay is None else {"weight_decay": method.weight_decay}
        optimizer = self.optimizer(config, model, decay)
        if method.kind in ("thin", "entries"):
            mrreg.attach(optimizer, model, seed=seed)
        torch.manual_seed(seed)  # dropout draws from the global generator
        return self.loop(config, model, optimizer, seed, job)

    def _groups(self, config: C, method: Method, job: Job) -> mrreg.ThinReport:
        key = (self.name, config, method, job.setting, job.data_dir)
        if key not in _GROUPS:
            model = self.network(config, method, job)
            _GROUPS[key] = mrreg.thin(model, self.shares(method, job), example_inputs=self.example(config))[1]
        return _GROUPS[key]

    def shown(self) -> list[Shown]:
        return [
            self._shown(setting, frozenset({preset}))
            for preset, config in self.presets.items()
            for setting in self.settings(config)
        ]

    def _shown(self, setting: Setting, presets: frozenset[str]) -> Shown:
        names = setting.methods
        ours = [name for name in names if name.startswith("thin")]
        main = ours[0]
        pairs = [(one, other) for one in ours for other in (DROPOUT, NONE) if other in names]
        pairs += [
            (name, main) if ", and " in name else (main, name) for name in names if name not in (DROPOUT, NONE, main)
        ]
        own: dict[str, Any] = {}
        if self.loss:
            unit = f"nats a {self.loss}"
            own = {"metric": "loss", "unit": unit, "digits": 3, "lower": True, "ylabel": f"test loss [{unit}]"}
            own["words"] = "a smaller loss than"
        return Shown(
            setting.title, {name: f"{setting.name}: {name}" if setting.name else name for name in names},
            [*pairs, (DROPOUT, NONE)] if DROPOUT in names else pairs, note=self.note, presets=presets,
            task=setting.task, **own,
            against=[(main, rival) for rival in (DROPOUT, NONE, DECAY) if rival in names],
        )  # fmt: skip

    def benchmark(self) -> Benchmark[C]:
        """Return the study with what the report shows of it."""
        study = Study(
            self.name, self.presets, self.comparisons, self.build, "loss" if self.loss else "accuracy",
            bool(self.loss), at_best_validation if self.loss else last, data=self.data,
        )  # fmt: skip
        shown = self.shown()
        return study.benchmark([part for each in shown for part in each.sections(NONE)], shown)
