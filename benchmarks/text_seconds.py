"""Where two rates pay when fine-tuning a text encoder: methods compared at equal seconds, on SST-2.

Goes beyond the paper, which compares at equal epochs. What a step of each method costs is measured first, all methods
in turns, in CPU seconds of one thread; a budget of so many steps of full fine-tuning then buys each method so many of
its own. A map of recipes is drawn with one seed, on training texts held out; a few recipes, chosen before, and the best
of the map are compared with other seeds on the dev texts, at equal seconds and at equal epochs.

Other methods join through `COMPARED` (a name and what makes a `Trainee`) and a group of costs of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from benchmarks import text_data, text_model
from benchmarks.harness import Benchmark, Context, Run
from benchmarks.records import Record, Result
from benchmarks.text_data import Task, batches
from benchmarks.text_methods import Recipe
from benchmarks.text_seconds_sections import BEST, REFERENCE, sections
from benchmarks.text_train import Method, Trainee, accuracy, costs, train

CYCLE = 10  # steps of a timing: whole cycles for every k here
MAP_SEED = 1000  # shares its texts and its head with no seed of the comparison


@dataclass(frozen=True)
class SecondsConfig:
    """Budgets in steps of full fine-tuning with AdamW, and what all methods share."""

    seeds: int
    encoder: str
    short: int
    long: int
    rounds: int  # of timing
    held_out: int  # training texts on which the map is drawn
    pool: int | None = None
    dev: int | None = None
    longest: int = 32
    batch: int = 16
    adamw: float = 5e-5
    sgd: float = 1e-3
    points: int | None = None  # of the map, if not all


PRESETS = {
    "smoke": SecondsConfig(
        seeds=1, encoder="minilm", short=1, long=1, rounds=1, held_out=8, pool=64, dev=8, longest=8, batch=4, points=1
    ),
    "cpu": SecondsConfig(seeds=8, encoder="minilm", short=24, long=72, rounds=3, held_out=400, pool=20_000),
    "gpu": SecondsConfig(
        seeds=8, encoder="distilbert", short=500, long=4000, rounds=5, held_out=2000, longest=64, adamw=2e-5
    ),
    "paper": SecondsConfig(
        seeds=10, encoder="distilbert", short=500, long=4000, rounds=5, held_out=2000, longest=128, adamw=2e-5
    ),
}


@dataclass(frozen=True)
class Point:
    """A recipe of the map; `rate` multiplies the optimizer's lr, `batch` the configuration's batch."""

    recipe: Recipe
    optimizer: str = "AdamW"
    rate: float = 1.0
    batch: float = 1.0

    @property
    def name(self) -> str:
        words = [f"{self.optimizer}: {self.recipe.name}"]
        words += [f"lr x {self.rate:g}"] if self.rate != 1 else []
        words += [f"batch x {self.batch:g}"] if self.batch != 1 else []
        return ", ".join(words)

    def recipe_of(self, config: SecondsConfig) -> Recipe:
        if self.optimizer == "SGD":
            return replace(self.recipe, optimizer="SGD", lr=self.rate * config.sgd)
        return replace(self.recipe, optimizer="AdamW", lr=self.rate * config.adamw)


def _two(fast: str, k: int = 5, slow_lr: str = "per_gradient", trained: str = "all") -> Recipe:
    return Recipe(trained, fast, k, slow_lr=slow_lr)


FULL, NO_EMBEDDINGS, HALF = Recipe(), Recipe("layers"), Recipe("half")
PAPERS, HALF_FAST = _two("head", slow_lr="coupled"), _two("half")
FIRST = (
    Point(FULL), Point(HALF), Point(HALF_FAST), Point(PAPERS), Point(NO_EMBEDDINGS),
    Point(_two("half", trained="layers")), Point(_two("half", slow_lr="coupled")), Point(_two("layers")),
    Point(_two("last")), Point(_two("half", k=2)), Point(_two("head", k=2)), Point(_two("last", k=2)),
    Point(_two("half", k=10)), Point(Recipe("last 2")),
)  # fmt: skip
"""Enough of the map to choose by; drawn before the comparison."""

REST = (
    Point(FULL, "SGD"), Point(HALF, "SGD"), Point(PAPERS, "SGD"), Point(_two("half", slow_lr="coupled"), "SGD"),
    Point(HALF_FAST, "SGD"), Point(HALF, rate=2), Point(HALF_FAST, rate=2), Point(FULL, rate=2),
    Point(FULL, batch=0.5), Point(HALF, batch=0.5), Point(HALF_FAST, batch=0.5),
    Point(FULL, batch=2), Point(HALF, batch=2), Point(HALF_FAST, batch=2),
    Point(_two("last", slow_lr="coupled"), "SGD"), Point(_two("last", slow_lr="coupled")), Point(_two("head")),
    Point(PAPERS, batch=0.5), Point(PAPERS, batch=2),
)  # fmt: skip
"""The rest of it, most wanted first; drawn after the comparison."""

POINTS = {point.name: point for point in (*FIRST, *REST)}
assert Point(FULL).name == REFERENCE


def _method(point: Point) -> Callable[[SecondsConfig], Method]:
    return lambda config: point.recipe_of(config).prepare


COMPARED: dict[str, Callable[[SecondsConfig], Method]] = {
    name: _method(POINTS[name])
    for name in (Point(each).name for each in (FULL, HALF, HALF_FAST, NO_EMBEDDINGS, PAPERS))
}
"""What is compared on the dev texts with all seeds: name -> configuration -> method. Batches have the usual size."""

COST_GROUPS: dict[str, tuple[str, ...]] = {"costs": (*COMPARED, *POINTS)}
"""Whose costs are measured in one run; each run has the reference beside them. Where not all points of the map are
drawn, only the costs of what is compared are measured.
"""


@dataclass(frozen=True)
class Job:
    """What one run does, and with which method."""

    what: str
    name: str = ""


def runs(config: SecondsConfig) -> list[Run]:
    """The costs, the first part of the map, the comparison seed by seed, the rest of the map."""
    found = [Run(name, (0,), Job("costs", name)) for name in COST_GROUPS]
    found += [Run(f"map, {point.name}", (MAP_SEED,), Job("map", point.name)) for point in FIRST[: config.points]]
    for seed in range(config.seeds):
        found += [Run(name, (seed,), Job("compare", name)) for name in (*COMPARED, BEST)]
    rest = REST if config.points is None else ()
    return found + [Run(f"map, {point.name}", (MAP_SEED,), Job("map", point.name)) for point in rest]


def execute(config: SecondsConfig, run: Run, context: Context) -> Sequence[Result]:
    """The costs, one point of the map, or one method and seed of the comparison."""
    job: Job = run.options
    whole = text_data.load("SST-2", config.encoder, config.longest, context.data_dir, config.pool)
    task = Task(whole.train.to(context.device), whole.dev[: config.dev].to(context.device), whole.classes)
    if job.what == "costs":
        group = COST_GROUPS[job.name]
        wanted = group if config.points is None else [name for name in group if name in COMPARED]
        return [_costs(config, wanted, task, context)]
    (seed,) = run.seeds
    if job.what == "map":
        point = POINTS[job.name]
        return [_map(config, point, task, seed, context)]
    return [_compare(config, job.name, task, seed, context)]


def _costs(config: SecondsConfig, names: Sequence[str], task: Task, context: Context) -> Result:
    """Seconds of a step of each method, and of the reference; points that differ in lr alone are measured once."""
    makers, drawn = {}, {}
    for name in dict.fromkeys((REFERENCE, *map(same_cost, names))):
        point = POINTS.get(name)
        method = COMPARED[name](config) if point is None else _method(point)(config)
        makers[name] = _maker(config, method, task.classes, 0, context)
        size = round(config.batch * (point.batch if point else 1))
        drawn[name] = list(islice(batches(task.train, size, torch.Generator().manual_seed(0)), CYCLE))
    return costs(makers, drawn, config.rounds)


def _maker(config: SecondsConfig, method: Method, classes: int, seed: int, context: Context) -> Callable[[], Trainee]:
    return lambda: method(text_model.encoder(config.encoder, classes, seed).to(context.device), seed)


def same_cost(name: str) -> str:
    """The first point of the map whose steps do the same work; the name itself where it is no point."""
    return next((other for other in POINTS if name in POINTS and _work(other) == _work(name)), name)


def _work(name: str) -> tuple[Recipe, str, float]:
    point = POINTS[name]
    return replace(point.recipe, slow_lr="coupled"), point.optimizer, point.batch


def relative(record: Record, name: str) -> float:
    """What a step of a method costs, in steps of the reference."""
    name = same_cost(name)
    for group in COST_GROUPS:
        for found in record.results(group).values():
            if name in found:
                return float(found[name] / found[REFERENCE])
    raise ValueError(f"text-seconds: the record must have the cost of {name!r}. Run its group of costs first.")


def _map(config: SecondsConfig, point: Point, task: Task, seed: int, context: Context) -> Result:
    """Accuracy on held-out training texts after the short and after the long budget."""
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    held, rest = task.train[order[: config.held_out]], task.train[order[config.held_out :]]
    cost = relative(context.record, point.name)
    short, long = (max(1, round(budget / cost)) for budget in (config.short, config.long))
    trainee = _maker(config, point.recipe_of(config).prepare, task.classes, seed, context)()
    drawn = batches(rest, round(config.batch * point.batch), torch.Generator().manual_seed(seed))
    reached: dict[int, float] = {}
    seconds = train(
        trainee, drawn, long, lambda step: reached.update({step: accuracy(trainee.model, held)}), {short, long}
    )
    return {
        "short": reached[short], "long": reached[long], "steps, short": short, "steps, long": long,
        "relative cost": cost, "seconds": seconds,
    }  # fmt: skip


def best(record: Record) -> Point:
    """The point of the map with two rates and the usual batch that is best, the mean of both budgets."""
    scores: dict[str, float] = {}
    for name, point in POINTS.items():
        found = record.results(f"map, {name}").values()
        if found and point.recipe.fast is not None and point.batch == 1:
            scores[name] = sum(each["short"] + each["long"] for each in found)
    return POINTS[max(scores, key=scores.__getitem__)] if scores else Point(HALF_FAST)


def _compare(config: SecondsConfig, name: str, task: Task, seed: int, context: Context) -> Result:
    """Dev accuracy after the seconds, and after the steps, that full fine-tuning has in the long budget."""
    known = best(context.record).name if name == BEST else name
    method = (_method(POINTS[known]) if known in POINTS else COMPARED[known])(config)
    cost = relative(context.record, known)
    steps = max(1, round(config.long / cost))
    last = max(steps, config.long)
    trainee = _maker(config, method, task.classes, seed, context)()
    reached: dict[int, float] = {}
    seconds = train(
        trainee, batches(task.train, config.batch, torch.Generator().manual_seed(seed)), last,
        lambda step: reached.update({step: accuracy(trainee.model, task.dev)}), {steps, config.long},
    )  # fmt: skip
    return {
        "equal seconds": reached[steps], "equal epochs": reached[config.long], "steps": steps, "relative cost": cost,
        "seconds of a step": seconds / last, "recipe": known,
    }  # fmt: skip


BENCHMARK = Benchmark("text-seconds", PRESETS, runs, execute, sections(tuple(POINTS), (*COMPARED, BEST)))
