"""Readings of what the paper merges on patch-augmented CIFAR-10, and how near each comes to its claim.

"We partitioned a composite network system into two parts, where each subnetwork was trained on a different timescale.
The weights sampled from both parts were averaged and merged every k steps" does not say which part goes on from the
mean, what becomes of the momentum, which weights are averaged, with which weights, and whether the slow part has one
gradient every k steps (Algorithm 1) or one at every step. The claim is that the merged network learns the patch as
h = 0.004 does and the images as h = 0.1 does.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from benchmarks.core import stats
from benchmarks.core.comparison import Comparison
from benchmarks.core.records import Record
from benchmarks.core.sections import Section, gain, rows
from benchmarks.core.study import Study
from benchmarks.experiments.patches import experiment as patches
from benchmarks.experiments.patches.data import SETS
from benchmarks.experiments.patches.experiment import FAST, LARGE, SMALL, K, Method, PatchesConfig
from benchmarks.experiments.patches.model import Merge

IMAGES, PATCH = "clean", "patch only"
TOLERANCE = 1.0  # points that a reading may fall short of the better single training, as in the claims of `patches`

BOTH, ONE_STARTS = "both copies start from the mean", "the {} copy alone starts from the mean"
EVERY_STEP, ZERO = "both copies take a gradient at every step", "momentum set to zero"

READINGS: Mapping[str, Method] = {
    BOTH: Method(FAST, K),
    ONE_STARTS.format("slow"): Method(FAST, K, Merge(start="slow")),
    ZERO: Method(FAST, K, Merge(momentum="zero")),
    ONE_STARTS.format("fast"): Method(FAST, K, Merge(start="fast")),
    "convolutions alone averaged": Method(FAST, K, Merge(kinds=(nn.Conv2d,))),
    EVERY_STEP: Method(FAST, 1),
    "three quarters of the fast copy": Method(FAST, K, Merge(weight=0.75)),
    "all but BatchNorm averaged": Method(FAST, K, Merge(kinds=(nn.Conv2d, nn.Linear))),
    "momentum averaged": Method(FAST, K, Merge(momentum="mean")),
    "three quarters of the slow copy": Method(FAST, K, Merge(weight=0.25)),
    "merged every 4 k steps": Method(FAST, K, Merge(every=4 * K)),
    "merged at every step": Method(FAST, K, Merge(every=1)),
    f"{EVERY_STEP}, {ZERO}": Method(FAST, 1, Merge(momentum="zero")),
}
"""The reading of `patches` first, then what differs from it."""

PRESETS = {
    "smoke": replace(patches.PRESETS["smoke"], methods=(BOTH, EVERY_STEP)),
    "cpu": replace(patches.PRESETS["cpu"], seeds=1, methods=tuple(READINGS)[:8]),
    "gpu": replace(patches.PRESETS["gpu"], methods=tuple(READINGS)),
}


def comparisons(config: PatchesConfig) -> list[Comparison[Method]]:
    """Return both single trainings and the readings of a preset, evaluated as in `patches`."""
    (comparison,) = patches.comparisons(replace(config, methods=(SMALL, LARGE)))
    readings = {name: READINGS[name] for name in config.methods}
    return [replace(comparison, methods={**comparison.methods, **readings})]


def _mean(record: Record, method: str, split: str) -> float:
    return stats.summarize(record.numbers(method, split).values()).mean


def shortfall(record: Record, reading: str) -> float:
    """Return how far a reading lies below the better single training: points on images or patch, whichever is more."""
    pairs = ((LARGE, IMAGES), (SMALL, PATCH))
    return max(stats.summarize(gain(better, reading, split)(record)).mean for better, split in pairs)


def ahead(record: Record, reading: str) -> bool:
    """Tell whether a reading is above the worse single training on images and on the patch, with every seed."""
    pairs = ((SMALL, IMAGES), (LARGE, PATCH))
    return all(points > 0 for worse, split in pairs for points in gain(reading, worse, split)(record))


def facts(record: Record) -> list[str]:
    """The readings that come nearest to the claim, and whether any reaches it, in words."""
    if not all(record.results(single) for single in (SMALL, LARGE)):
        return []
    short = {name: shortfall(record, name) for name in record.config["methods"] if record.results(name)}
    ranked = sorted(short, key=short.__getitem__)
    said = [
        f"{what}{name}: {_mean(record, name, IMAGES):.1f} % of the images, {_mean(record, name, PATCH):.1f} % of the "
        f"patches{points}."
        for what, name, points in (
            *(("Single training, ", name, "") for name in (SMALL, LARGE)),
            *(("Nearest to the claim: ", name, f", at most {short[name]:.1f} points short") for name in ranked[:3]),
        )
    ]
    above = [name for name in ranked if ahead(record, name)]
    seeds = len(record.results(SMALL))
    reached = [name for name in above if short[name] <= TOLERANCE]
    return [
        *said,
        f"Above h = 0.004 on images and above h = 0.1 on the patch, with every seed of {seeds}: "
        f"{'; '.join(above) or 'none'}.",
        f"Reach the claim, being besides no more than {TOLERANCE:g} point below the better single training on either: "
        f"{'; '.join(reached) or 'none'} (of {len(ranked)} readings).",
    ]


NOTE = (
    "Network, data and training of `patches`, mean of the last quarter of the evaluations; chance is 10 %. `cpu` has "
    "one seed and the first eight readings. The first is that of `patches`; every other one differs from it in what "
    "its name says. The copy that starts from the mean is evaluated, the fast one if both do."
)
SECTIONS = (
    Section("", "Search over readings of figure 2: which come nearest", "%", facts=facts, note=NOTE),
    *(
        Section("", f"Search over readings of figure 2: {name}", "%", 1, rows=rows((SMALL, LARGE, *READINGS), name))
        for name in SETS
    ),
)

STUDY = Study(
    "patches-search", PRESETS, comparisons, patches.build, result=patches.result, data="images of CIFAR-10 with patches"
)
BENCHMARK = STUDY.benchmark(SECTIONS)
