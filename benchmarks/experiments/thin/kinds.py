"""The decoder of thin-chars: which units to leave out, for how long, rescaled or not.

Goes beyond the paper. Nothing is tuned: p is what the search of thin-chars chose, or twice as much of one kind.
"""

from dataclasses import replace

from benchmarks.core.comparison import Comparison, Costs, evenly
from benchmarks.core.study import Study
from benchmarks.core.study_sections import study_sections
from benchmarks.experiments.thin import chars
from benchmarks.experiments.thin.chars import NONE, THIN, Config, Method

METHODS = {
    NONE: Method(),
    THIN: Method("thin", 0.25, 0.17),
    "hidden units alone": Method("thin", 0.25, 0.0),
    "heads alone": Method("thin", 0.0, 0.17),
    "hidden units alone, twice as many": Method("thin", 0.5, 0.0),
    "heads alone, twice as many": Method("thin", 0.0, 0.33),
    "k = 2": Method("thin", 0.25, 0.17, k=2),
    "k = 10": Method("thin", 0.25, 0.17, k=10),
    "k = 50": Method("thin", 0.25, 0.17, k=50),
    "not rescaled": Method("thin", 0.25, 0.17, rescale=False),
}
PRESETS = {
    "smoke": chars.PRESETS["smoke"],
    "cpu": Config(3, 1600, points=4, timings=2),
    "gpu": replace(chars.PRESETS["gpu"], seeds=5),
}


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return one comparison of all methods."""
    budgets = evenly(config.steps, config.points)
    costs: Costs[Method] = Costs(NONE, config.timings, cycle=50)
    return [Comparison(METHODS, config.seeds, budgets, costs, splits=("validation", "test"))]


SHOWN = replace(
    chars.SHOWN,
    title="Which units of a character-level decoder are left out, and for how long",
    methods={name: name for name in METHODS},
    better=[(THIN, other) for other in METHODS if other != THIN],
    note="The decoder of thin-chars. A quarter of the hidden units and a sixth of the heads are absent, unless it says "
    "otherwise; boost k. The loss is the test loss where the validation loss was smallest.",
)
STUDY = Study(
    "thin-kinds", PRESETS, comparisons, chars.build, "loss", lower=True, result=chars.result, data="Penn Treebank"
)
BENCHMARK = STUDY.benchmark(study_sections(SHOWN, baseline=NONE))
