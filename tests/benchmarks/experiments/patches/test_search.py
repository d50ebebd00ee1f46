"""The search over readings of the merge: every reading against a literal loop, and what is said of a record."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.merged_copies import DECAY, gradient
from torch import Tensor, nn

from benchmarks.core import runner as harness
from benchmarks.core.records import Record, load, new
from benchmarks.core.training import Loop
from benchmarks.experiments.patches import search
from benchmarks.experiments.patches.experiment import LARGE, SMALL, K
from benchmarks.experiments.patches.model import Copies, optimizer, sum_of_losses
from benchmarks.experiments.patches.search import READINGS, SECTIONS, STUDY

LR, MOMENTUM = 0.002, 0.9
LAYERS = ("convolution", "convolution", "norm", "norm", "linear", "linear")  # of the six parameters

Merged = tuple[Tensor, Tensor, Tensor, Tensor]  # weights of the fast and slow copy, momentum of the fast and slow copy


def plainly(f: Tensor, s: Tensor, p: Tensor, q: Tensor, layer: str) -> Merged:
    return (f + s) / 2, (f + s) / 2, p, q


# what is merged when (every so many steps), how often the slow copy takes a gradient, which copy is the result
LITERALLY: dict[str, tuple[int, int, str, Callable[[Tensor, Tensor, Tensor, Tensor, str], Merged]]] = {
    "both copies start from the mean": (25, 25, "fast", plainly),
    "the slow copy alone starts from the mean": (25, 25, "slow", lambda f, s, p, q, _: (f, (f + s) / 2, p, q)),
    "the fast copy alone starts from the mean": (25, 25, "fast", lambda f, s, p, q, _: ((f + s) / 2, s, p, q)),
    "momentum set to zero": (25, 25, "fast", lambda f, s, p, q, _: ((f + s) / 2, (f + s) / 2, 0 * p, 0 * q)),
    "momentum averaged": (
        25, 25, "fast", lambda f, s, p, q, _: ((f + s) / 2, (f + s) / 2, (p + q) / 2, (p + q) / 2),
    ),
    "convolutions alone averaged": (
        25, 25, "fast", lambda f, s, p, q, layer: plainly(f, s, p, q, "") if layer == "convolution" else (f, s, p, q),
    ),
    "all but BatchNorm averaged": (
        25, 25, "fast", lambda f, s, p, q, layer: (f, s, p, q) if layer == "norm" else plainly(f, s, p, q, ""),
    ),
    "three quarters of the fast copy": (
        25, 25, "fast", lambda f, s, p, q, _: (0.75 * f + 0.25 * s, 0.75 * f + 0.25 * s, p, q),
    ),
    "three quarters of the slow copy": (
        25, 25, "fast", lambda f, s, p, q, _: (0.25 * f + 0.75 * s, 0.25 * f + 0.75 * s, p, q),
    ),
    "merged every 4 k steps": (100, 25, "fast", plainly),
    "merged at every step": (1, 25, "fast", plainly),
    "both copies take a gradient at every step": (25, 1, "fast", plainly),
    "both copies take a gradient at every step, momentum set to zero": (
        25, 1, "fast", lambda f, s, p, q, _: ((f + s) / 2, (f + s) / 2, 0 * p, 0 * q),
    ),
}  # fmt: skip


def same(net: nn.Module, weights: list[Tensor]) -> None:
    for got, want in zip(net.parameters(), weights, strict=True):
        torch.testing.assert_close(got.detach(), want, atol=1e-12, rtol=1e-12)


@pytest.mark.paper
@pytest.mark.parametrize("reading", READINGS)
def test_a_reading_equals_a_literal_loop_after_every_step(reading: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 10)).double()
    plain, every, (merge_every, period, result, merged) = deepcopy(net), 25, LITERALLY[reading]
    copies = Copies(net, every, READINGS[reading].period or 0, READINGS[reading].merge)
    sgd = optimizer(copies, LR, MOMENTUM, DECAY)
    steps = 2 * max(merge_every, every) + 2
    batches = [(torch.randn(4, 3, 4, 4, dtype=torch.double), torch.randint(10, (4,))) for _ in range(steps)]
    loop = Loop(copies, sgd, iter(batches), loss=sum_of_losses, after=partial(copies.after_step, sgd))
    fast, slow = ([p.detach().clone() for p in plain.parameters()] for _ in range(2))
    p_fast, p_slow = ([torch.zeros_like(p) for p in fast] for _ in range(2))
    for t, (x, y) in enumerate(batches):
        g_fast, g_slow = gradient(plain, fast, x, y), gradient(plain, slow, x, y)
        for i, layer in enumerate(LAYERS):
            p_fast[i] = MOMENTUM * p_fast[i] + g_fast[i]
            fast[i] = fast[i] - LR * p_fast[i]
            if t % period == 0:
                p_slow[i] = MOMENTUM * p_slow[i] + g_slow[i]
            slow[i] = slow[i] - (LR if period == every else every * LR) * p_slow[i]
            if (t + 1) % merge_every == 0:
                fast[i], slow[i], p_fast[i], p_slow[i] = merged(fast[i], slow[i], p_fast[i], p_slow[i], layer)
        loop.step()
        same(copies.net, fast)
        same(copies.slow, slow)
    same(copies.merged, slow if result == "slow" else fast)


def test_evaluations_come_when_every_reading_has_just_been_merged() -> None:
    for config in search.PRESETS.values():
        for reading in config.methods:
            assert config.every % (READINGS[reading].merge.every or K) == 0


def test_every_row_is_measured() -> None:
    known = {run.method for run in STUDY.runs(search.PRESETS["gpu"])}
    assert known == {SMALL, LARGE, *READINGS}
    for section in SECTIONS[1:]:
        assert {row.label for row in section.rows} == known


NEAR, FAR, OTHER, *_ = READINGS


def record(*readings: tuple[float, float]) -> Record:
    """A record of single trainings with 40 and 50 % of the images, 90 and 10 % of the patches, and of readings."""
    made = new("patches-search", "cpu", search.PRESETS["cpu"], torch.device("cpu"))
    for method, (images, patch) in zip((SMALL, LARGE, *READINGS), ((40, 90), (50, 10), *readings), strict=False):
        for seed in range(2):
            result = {"clean": images + seed, "patched": 0.0, "patch only": patch + seed}
            made.add(f"{method} {seed}", method, (seed,), 1.0, [result])
    return made


def test_the_nearest_reading_is_short_of_the_better_single_training_by_the_fewest_points() -> None:
    probe = record((48.0, 85.0), (55.0, 30.0), (39.0, 89.5))
    assert [search.shortfall(probe, name) for name in (NEAR, FAR, OTHER)] == [5, 60, 11]
    assert [search.ahead(probe, name) for name in (NEAR, FAR, OTHER)] == [True, True, False]
    small, large, nearest, second, _, above, reached = search.facts(probe)
    assert small == "Single training, SGD, h = 0.004: 40.5 % of the images, 90.5 % of the patches."
    assert large.endswith("50.5 % of the images, 10.5 % of the patches.")
    assert (
        nearest
        == f"Nearest to the claim: {NEAR}: 48.5 % of the images, 85.5 % of the patches, at most 5.0 points short."
    )
    assert OTHER in second
    assert above.endswith(f"with every seed of 2: {NEAR}; {FAR}.")
    assert reached.endswith("on either: none (of 3 readings).")


def test_a_reading_reaches_the_claim_within_a_point_on_images_and_patch() -> None:
    assert search.facts(record((49.0, 89.0), (48.9, 95.0)))[-1].endswith(f"on either: {NEAR} (of 2 readings).")


def test_nothing_is_said_before_both_single_trainings_have_run() -> None:
    made = record((49.0, 89.0))
    made.runs = {key: run for key, run in made.runs.items() if run["method"] != LARGE}
    assert search.facts(made) == []


@pytest.mark.data
def test_smoke_record_has_single_trainings_and_readings(data_dir: Path, tmp_path: Path) -> None:
    made = load(harness.run(search.BENCHMARK, "smoke", tmp_path, data_dir=data_dir).path)
    for method in (SMALL, LARGE, *search.PRESETS["smoke"].methods):
        assert sorted(made.numbers(method, "patch only")) == [0, 1]
    assert search.facts(made)[2].startswith("Nearest to the claim: ")
