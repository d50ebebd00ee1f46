"""Where two rates pay when fine-tuning a text encoder: methods compared at equal seconds, on SST-2.

Goes beyond the paper, which compares at equal epochs. What a step of each method costs is measured first, all methods
in turns, in CPU seconds of one thread; a budget of so many steps of full fine-tuning then buys each method so many of
its own. A map of recipes is drawn with one seed, on training texts held out; a few recipes, chosen before, and the best
of the map are compared with other seeds on the dev texts, at equal seconds and at equal epochs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch

from benchmarks.core.records import Record, Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.data import Task, Texts, batches
from benchmarks.experiments.text.seconds_points import COMPARED, FIRST, HALF_FAST, POINTS, REST, Point
from benchmarks.experiments.text.seconds_report import BEST, LONG, REFERENCE, sections
from benchmarks.experiments.text.training import Batch, Trainee, accuracy, costs, train

MAP_SEED = 1000  # shares its order of texts and its head with no seed of the comparison
COSTS = {"costs": FIRST, "costs, rest of the map": REST}  # whose costs are measured in one run


@dataclass(frozen=True)
class SecondsConfig:
    """Budgets in steps of full fine-tuning with AdamW, and what all methods share.

    The map has the budgets `short` and `middle`, the comparison `middle` and, if it is not 0, `long`.
    """

    seeds: int
    encoder: str
    short: int
    middle: int
    long: int
    rounds: int  # of timing
    held_out: int  # training texts on which the map is drawn
    cycle: int = 10  # steps of a timing: whole cycles for every k here
    pool: int | None = None
    dev: int | None = None
    longest: int = 32
    batch: int = 16
    adamw: float = 5e-5
    sgd: float = 2e-3
    points: int | None = None  # of the map, if not all


PRESETS = {
    "smoke": SecondsConfig(
        seeds=1,
        encoder="minilm",
        short=1,
        middle=1,
        long=0,
        rounds=1,
        cycle=1,
        held_out=8,
        pool=64,
        dev=8,
        longest=8,
        batch=4,
        points=1,
    ),
    "cpu": SecondsConfig(seeds=8, encoder="minilm", short=12, middle=40, long=120, rounds=2, held_out=400, pool=20_000),
    "gpu": SecondsConfig(
        seeds=8,
        encoder="distilbert",
        short=300,
        middle=1000,
        long=4000,
        rounds=5,
        held_out=2000,
        longest=64,
        adamw=2e-5,
        sgd=1e-4,
    ),
}
PRESETS["paper"] = replace(PRESETS["gpu"], seeds=10, longest=128)


@dataclass(frozen=True)
class Job:
    """What one run does: measure costs, draw a point of the map, or take part in a comparison with a budget."""

    point: str = ""
    budget: int = 0


def runs(config: SecondsConfig) -> list[Run]:
    """Half of the map, the comparison seed by seed, the rest of the map, the comparison with the long budget."""
    first, rest = (
        [Run(name, (0,)), *(Run(f"map, {each.name}", (MAP_SEED,), Job(each.name)) for each in points[: config.points])]
        for name, points in COSTS.items()
    )
    long = _comparison(config, LONG, config.long) if config.long else []
    return [*first, *_comparison(config, "", config.middle), *rest, *long]


def _comparison(config: SecondsConfig, prefix: str, budget: int) -> list[Run]:
    return [
        Run(f"{prefix}{name}", (seed,), Job(name, budget)) for seed in range(config.seeds) for name in (*COMPARED, BEST)
    ]


def execute(config: SecondsConfig, run: Run, context: Context) -> Sequence[Result]:
    """The costs, one point of the map, or one method and seed of a comparison."""
    whole = text_data.load("SST-2", config.encoder, config.longest, context.data_dir, config.pool)
    task = Task(whole.train.to(context.device), whole.dev[: config.dev].to(context.device), whole.classes)
    if run.method in COSTS:
        return [_costs(config, COSTS[run.method], task, context)]
    (seed,) = run.seeds
    job: Job = run.options
    point = best(context.record) if job.point == BEST else POINTS[job.point]
    if not job.budget:
        return [_map(config, point, task, seed, context)]
    return [_compare(config, point, job.budget, task, seed, context)]


def _costs(config: SecondsConfig, group: Sequence[Point], task: Task, context: Context) -> Result:
    """Seconds of a step of each point and of the reference; of points whose steps do the same work, of one."""
    needed = [point for point in (POINTS[name] for name in (REFERENCE, *COMPARED)) if point in group]
    wanted = {point.work: point for point in reversed((POINTS[REFERENCE], *needed, *group[: config.points]))}
    makers = {each.name: partial(_trainee, config, each, task.classes, 0, context) for each in wanted.values()}
    drawn = {each.name: list(islice(_batches(config, each, task.train, 0), config.cycle)) for each in wanted.values()}
    return costs(makers, drawn, config.rounds)


def relative(record: Record, point: Point) -> float:
    """What a step of a point costs, in steps of the reference.

    Raises:
        ValueError: If the record does not have it.
    """
    for group in COSTS:
        for found in record.results(group).values():
            for name, seconds in found.items():
                if POINTS[name].work == point.work:
                    return float(seconds / found[REFERENCE])
    raise ValueError(f"text-seconds: the record must have the cost of {point.name!r}. Run its costs first.")


def _trainee(config: SecondsConfig, point: Point, classes: int, seed: int, context: Context) -> Trainee:
    """A freshly loaded encoder and the point's optimizer."""
    lr = point.rate * (config.sgd if point.optimizer == "SGD" else config.adamw)
    net = text_model.encoder(config.encoder, classes, seed).to(context.device)
    return replace(point.recipe, optimizer=point.optimizer, lr=lr).prepare(net)


def _batches(config: SecondsConfig, point: Point, texts: Texts, seed: int) -> Iterator[Batch]:
    return batches(texts, round(config.batch * point.batch), torch.Generator().manual_seed(seed))


def _steps(record: Record, point: Point, budget: int) -> int:
    """How many steps of a point have the seconds of so many of the reference."""
    return max(1, round(budget / relative(record, point)))


def _map(config: SecondsConfig, point: Point, task: Task, seed: int, context: Context) -> Result:
    """Accuracy on held-out training texts after the short and after the middle budget."""
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    held, rest = task.train[order[: config.held_out]], task.train[order[config.held_out :]]
    short, middle = (_steps(context.record, point, budget) for budget in (config.short, config.middle))
    trainee = _trainee(config, point, task.classes, seed, context)
    reached = _reached(trainee, _batches(config, point, rest, seed), held, (short, middle))
    return {
        "short": reached[short],
        "middle": reached[middle],
        "steps, short": short,
        "steps, middle": middle,
        "relative cost": relative(context.record, point),
    }


def best(record: Record) -> Point:
    """Of the first part of the map, the best point with two rates that is not compared anyway; mean of both budgets."""
    scores = {
        point: each["short"] + each["middle"]
        for point in FIRST
        if point.recipe.fast is not None and point.name not in COMPARED
        for each in record.results(f"map, {point.name}").values()
    }
    return max(scores, key=scores.__getitem__) if scores else Point(HALF_FAST)  # whose cost is always known


def _compare(config: SecondsConfig, point: Point, budget: int, task: Task, seed: int, context: Context) -> Result:
    """Dev accuracy after the seconds, and after the steps, that full fine-tuning has."""
    steps = _steps(context.record, point, budget)
    trainee = _trainee(config, point, task.classes, seed, context)
    reached = _reached(trainee, _batches(config, point, task.train, seed), task.dev, (steps, budget))
    return {
        "equal seconds": reached[steps],
        "equal epochs": reached[budget],
        "steps": steps,
        "relative cost": relative(context.record, point),
        "recipe": point.name,
    }


def _reached(trainee: Trainee, drawn: Iterator[Batch], texts: Texts, at: Sequence[int]) -> dict[int, float]:
    """Accuracy on some texts after so many steps."""
    found: dict[int, float] = {}
    train(trainee, drawn, max(at), lambda step: found.update({step: accuracy(trainee.model, texts)}), at)
    return found


BENCHMARK = Benchmark("text-seconds", PRESETS, runs, execute, sections())
