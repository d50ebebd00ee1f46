"""Multirate fine-tuning of a text encoder where it pays and where not: methods at equal seconds, on SST-2.

Goes beyond the paper, which compares at equal epochs. A map of recipes is drawn with one seed, on training texts held
out, at equal seconds; a few recipes, chosen before, and the best of the map are compared with other seeds on the dev
texts, at equal seconds and at equal epochs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.core import stats
from benchmarks.core.comparison import Comparison, Costs, Job, Options, Outcome, Search
from benchmarks.core.records import Record, Result
from benchmarks.core.sections import Row, Section, gain, metric
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown
from benchmarks.core.training import Loop
from benchmarks.experiments.text.recipes import Recipe, SstConfig


@dataclass(frozen=True)
class Point:
    """A recipe of the map; `rate` multiplies the optimizer's lr, `batch` the usual number of texts a step."""

    recipe: Recipe
    optimizer: Literal["AdamW", "SGD"] = "AdamW"
    rate: float = 1.0
    batch: float = 1.0

    @property
    def name(self) -> str:
        words = [f"{self.optimizer}: {self.recipe.name}"]
        words += [f"lr x {self.rate:g}"] if self.rate != 1 else []
        words += [f"batch x {self.batch:g}"] if self.batch != 1 else []
        return ", ".join(words)

    @property
    def work(self) -> tuple[Recipe, str, float]:
        """Equal for points whose steps cost the same: they differ in step sizes alone."""
        return replace(self.recipe, slow_lr="coupled"), self.optimizer, self.batch


def _two(fast: str, k: int = 5, slow_lr: str = "per_gradient", trained: str = "all") -> Recipe:
    return Recipe(trained, fast, k, slow_lr=slow_lr)


FULL, NO_EMBEDDINGS, HALF = Recipe(), Recipe("layers"), Recipe("half")
PAPERS, HALF_FAST = _two("head", slow_lr="coupled"), _two("half")
FIRST = (
    Point(FULL), Point(HALF), Point(HALF_FAST), Point(PAPERS), Point(NO_EMBEDDINGS),
    Point(_two("half", k=2)), Point(_two("half", trained="layers")), Point(_two("layers")),
    Point(_two("half", slow_lr="coupled")), Point(_two("last")), Point(_two("head", k=2)),
)  # fmt: skip
"""Enough of the map to choose by; drawn before the comparison."""

REST = (
    Point(FULL, "SGD"), Point(HALF, "SGD"), Point(PAPERS, "SGD"), Point(_two("half", slow_lr="coupled"), "SGD"),
    Point(HALF_FAST, "SGD"), Point(HALF, rate=2), Point(HALF_FAST, rate=2), Point(FULL, rate=2),
    Point(FULL, batch=0.5), Point(HALF, batch=0.5), Point(HALF_FAST, batch=0.5), Point(PAPERS, batch=0.5),
    Point(FULL, batch=2), Point(HALF, batch=2), Point(HALF_FAST, batch=2), Point(PAPERS, batch=2),
    Point(_two("last", k=2)), Point(_two("half", k=10)), Point(Recipe("last 2")), Point(_two("head")),
    Point(_two("last", slow_lr="coupled")), Point(_two("last", slow_lr="coupled"), "SGD"),
)  # fmt: skip
"""The rest of it, drawn after the comparison."""

POINTS = {point.name: point for point in (*FIRST, *REST)}
COMPARED = tuple(Point(recipe).name for recipe in (FULL, HALF, HALF_FAST, NO_EMBEDDINGS, PAPERS))
"""The points that are compared with all seeds, named before anything was run; the best of the map joins."""

MAP = "map, "
MAP_SEED = 1000  # shares its order of texts and its head with no seed of the comparison
REFERENCE, FROZEN = Point(FULL).name, Point(HALF).name
BEST, BEST_LABEL = "two rates, best other point of the map", "multirate, best other point of the map"
LONG = "long budget, "
SECONDS, EPOCHS = "equal seconds", "equal epochs"


@dataclass(frozen=True, kw_only=True)
class SecondsConfig(SstConfig):
    """Budgets in steps of full fine-tuning with AdamW; the map is drawn on the texts that are held out.

    The map has the budgets `short` and `middle`, the comparison `middle` and, if it is not 0, `long`.
    """

    short: int
    middle: int
    long: int
    rounds: int  # of timing
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
    """Return the training of a point, on all texts but those that the map is drawn on."""
    lr = point.rate * (config.sgd if point.optimizer == "SGD" else config.adamw)
    recipe = replace(point.recipe, optimizer=point.optimizer, lr=lr)
    sized = replace(config, batch=round(config.batch * point.batch))
    return sized.training(recipe.prepare, seed, job, held_out=job.setting == MAP and job.what != "costs")


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


NOTE = (
    "SST-2, one linear layer on the mean output of the encoder, constant lr, no weight decay, no dropout. Equal "
    "seconds are CPU seconds of one thread, by the cost of a step measured with all methods in turns. The preset cpu "
    "fine-tunes MiniLM with batch 16 on texts cut at 32 tokens (lr: AdamW 5e-5, SGD 2e-3 with momentum 0.9) and gives "
    "each method the seconds of 40 steps of full fine-tuning with AdamW (short budget 12, long 120). "
)


def _comparison(name: str, prefix: str, title: str) -> Section:
    methods = {method: f"{prefix}{method}" for method in COMPARED} | {BEST_LABEL: f"{prefix}{BEST}"}
    ours = (Point(HALF_FAST).name, Point(PAPERS).name, BEST_LABEL)
    shown = Shown(
        "Fine-tuning on SST-2", methods, [(method, other) for method in ours for other in (REFERENCE, FROZEN)],
        note=NOTE + "All 872 dev texts; seeds draw the order of the texts and the classifier.",
        facts=lambda record: [*_differences(record, name, methods), *_chosen(record)], ylabel="dev accuracy [%]",
    )  # fmt: skip
    return shown.section(title, name)


def _differences(record: Record, name: str, methods: Mapping[str, str]) -> list[str]:
    """Return each method minus full fine-tuning and minus the frozen half, with intervals."""
    return [
        stats.sentence(label, other, values, "points")
        for other in (REFERENCE, FROZEN)
        for label, method in methods.items()
        if label != other and (values := gain(method, methods[other], name)(record))
    ]


def _chosen(record: Record) -> list[str]:
    recipes = sorted({result["recipe"] for result in record.results(BEST).values()})
    return [f"Best other point of the map: {', '.join(recipes)}."] if recipes else []


def _map(title: str, name: str, unit: str = "", *, digits: int = 2, note: str) -> Section:
    rows = tuple(Row(point, metric(f"{MAP}{point}", name)) for point in POINTS)
    return Section("", title, unit, digits, "mean" if unit else "median", rows, note=note)


ONE_SEED = NOTE + "One seed, on 400 training texts held out (standard error about two points): for choosing only."
SECTIONS = (
    _comparison(SECONDS, "", "equal seconds"),
    _comparison(EPOCHS, "", "equal epochs"),
    _comparison(SECONDS, LONG, "equal seconds, three times as long"),
    _comparison(EPOCHS, LONG, "equal epochs, three times as long"),
    *(
        _map(f"Map of recipes at equal seconds, {name} budget", name, "%", digits=1, note=ONE_SEED)
        for name in ("short", "middle")
    ),
    _map(
        "Cost of a fine-tuning step: full fine-tuning with AdamW, batch 16, = 1", "relative cost",
        note="CPU seconds of one thread, mean over ten steps (whole cycles), median of the rounds.",
    ),
)  # fmt: skip
STUDY = Study("text-seconds", PRESETS, comparisons, build, result=result, data="SST-2")
BENCHMARK = STUDY.benchmark(SECTIONS)
