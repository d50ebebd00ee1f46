"""Multirate fine-tuning of a text encoder where it pays and where not: methods at equal seconds, on SST-2.

Goes beyond the paper, which compares at equal epochs. A map of recipes is drawn with one seed, on training texts held
out, at equal seconds; a few recipes, chosen before, and the best of the map are compared with other seeds on the dev
texts, at equal seconds and at equal epochs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.core.comparison import Comparison, Costs, Job, Options, Outcome, Search
from benchmarks.core.records import Result
from benchmarks.core.study import Study
from benchmarks.core.training import Loop
from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.seconds_points import COMPARED, FIRST, HALF_FAST, POINTS, REST, Point
from benchmarks.experiments.text.seconds_report import BEST, LONG, REFERENCE, sections
from benchmarks.experiments.text.training import loop

MAP = "map, "
MAP_SEED = 1000  # shares its order of texts and its head with no seed of the comparison


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
        seeds=1, encoder="minilm", short=1, middle=1, long=0, rounds=1, cycle=1, held_out=8, pool=64, dev=8,
        longest=8, batch=4, points=1,
    ),
    "cpu": SecondsConfig(seeds=8, encoder="minilm", short=12, middle=40, long=120, rounds=2, held_out=400, pool=20_000),
    "gpu": SecondsConfig(
        seeds=8, encoder="distilbert", short=300, middle=1000, long=4000, rounds=5, held_out=2000, longest=64,
        adamw=2e-5, sgd=1e-4,
    ),
}  # fmt: skip
PRESETS["paper"] = replace(PRESETS["gpu"], seeds=10, longest=128)


def costs(config: SecondsConfig, name: str, points: Sequence[Point]) -> Costs[Point]:
    """Return the timing of some points; of those whose steps do the same work, one is timed for all."""
    known = {point.work: point.name for point in reversed((POINTS[REFERENCE], *points))}
    timed = {name: POINTS[name] for name in known.values()}
    return Costs(REFERENCE, config.rounds, config.cycle, name, timed, lambda _, point, step: known[point.work])


def candidates(points: Sequence[Point]) -> Search:
    """Return the choice among the multirate points of the map that are not compared anyway; mean of both budgets."""
    recipes = [p.recipe for p in points if p.recipe.fast is not None and p.name not in COMPARED]

    def trial(name: str, options: Options) -> str:
        return f"{MAP}{Point(options['recipe']).name}"

    grid = {BEST: [{"recipe": recipe} for recipe in recipes]} if recipes else {}
    return Search(grid, trial=trial, score=lambda result: float(result["short"] + result["middle"]))


def comparisons(config: SecondsConfig) -> list[Comparison[Point]]:
    """Return half of the map, the comparison, the rest of the map, the comparison with the long budget."""
    first, rest = FIRST[: config.points], REST[: config.points]
    timing = costs(config, "costs", (*first, *(POINTS[name] for name in COMPARED)))
    everyone = {name: POINTS[name] for name in COMPARED} | {BEST: Point(HALF_FAST)}

    def drawn(points: Sequence[Point], timing: Costs[Point]) -> Comparison[Point]:
        return Comparison(
            {point.name: point for point in points}, 1, (config.short, config.middle), timing, setting=MAP, prefix=MAP,
            splits=("validation",), first_seed=MAP_SEED,
        )  # fmt: skip

    def compared(budget: int, prefix: str) -> Comparison[Point]:
        return Comparison(everyone, config.seeds, (budget,), timing, candidates(first), prefix=prefix)

    found = [
        drawn(first, timing),
        compared(config.middle, ""),
        drawn(rest, costs(config, "costs, rest of the map", rest)),
    ]
    return [*found, compared(config.long, LONG)] if config.long else found


def build(config: SecondsConfig, point: Point, seed: int, job: Job) -> Loop:
    """Return the training of a freshly loaded encoder, on all texts but those that the map is drawn on."""
    whole = text_data.load("SST-2", config.encoder, config.longest, job.data_dir, config.pool).to(job.device)
    task = whole.held_out(config.held_out, seed) if job.setting == MAP and job.what != "costs" else whole
    lr = point.rate * (config.sgd if point.optimizer == "SGD" else config.adamw)
    net = text_model.encoder(config.encoder, task.classes, seed).to(job.device)
    trainee = replace(point.recipe, optimizer=point.optimizer, lr=lr).prepare(net)
    splits = {"validation": task.dev, "test": task.dev[: config.dev]}
    return loop(trainee, task.train, round(config.batch * point.batch), seed, splits)


def result(config: SecondsConfig, outcome: Outcome[Point]) -> Result:
    """Return accuracy after the short and the middle budget, or after the seconds and the steps of the budget."""
    if outcome.setting == MAP:
        short, middle = outcome.at_seconds("validation")
        steps = {"steps, short": outcome.equal[0], "steps, middle": outcome.equal[1]}
        return {"short": short, "middle": middle, **steps, "relative cost": outcome.relative}
    return {
        "equal seconds": outcome.at_seconds()[-1],
        "equal epochs": outcome.at_steps()[-1],
        "steps": outcome.equal[-1],
        "relative cost": outcome.relative,
        "recipe": outcome.method.name,
    }


STUDY = Study("text-seconds", PRESETS, comparisons, build, result=result, data="SST-2")
BENCHMARK = STUDY.benchmark(sections())
