"""The cost model of thin training: what it counts, and that it finds known speeds and predicts by them."""

from dataclasses import asdict, replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch

import mrreg
from benchmarks.core.records import Record
from benchmarks.experiments.speed import cost_model
from benchmarks.experiments.speed.cost_model import WAYS, Counts, Model, work
from benchmarks.experiments.speed.thin import COMPUTED, NETWORKS, Case

SPEEDS = [1e-11, 2e-10, 5e-10]  # seconds of a FLOP, of a byte in optimizers, of a byte in gathering
COUNTS = {
    "small": Counts(1e9, 4e8, 1_000_000, 900_000, 400_000),
    "large": Counts(1e11, 5e10, 10_000_000, 1_000_000, 500_000),
    "wide": Counts(1e8, 3e7, 9_000_000, 8_000_000, 2_000_000),
}
CASES = [Case(network, optimizer, k=k) for network in COUNTS for optimizer, k in (("SGD", 5), ("AdamW", 10))]


def record() -> Record:
    """Seconds of a machine whose speeds are known."""
    made = Record("speed thin", "cpu", {}, "cpu", 1, {})
    for case in CASES:
        name, counts = cost_model.counts_name(case), COUNTS[case.network]
        made.add(name, name, (0,), 1.0, [asdict(counts)])
        spent = {way: float(np.dot(work(counts, case, way), SPEEDS)) for way in ("plain", *WAYS)}
        ratios = {way: spent[way] / spent["plain"] for way in WAYS}
        made.add(case.name, case.name, (0,), 1.0, [ratios | {"seconds per cycle": spent}])
    return made


def test_plain_steps_take_their_flops_and_the_bytes_of_their_optimizer() -> None:
    assert work(COUNTS["small"], Case("small", "SGD", k=2), "plain") == (2e9, 2 * 3 * 4 * 1_000_000, 0)


def test_speeds_are_found_and_thin_training_is_predicted_exactly() -> None:
    model = Model(record(), CASES)
    assert model.speeds() == pytest.approx(SPEEDS, rel=1e-4)
    for case, way in product(CASES, WAYS):
        assert model.errors(case, way) == pytest.approx([0.0], abs=0.01)
    assert model.checked()[-1] == "More than 10 % off: 0 of 12."


def test_a_network_is_predicted_from_the_others() -> None:
    made = record()
    for result in made.results(CASES[0].name).values():
        result["seconds per cycle"]["plain"] *= 3
    case = replace(CASES[0], network="small, batch 2")  # the same network
    made.add(name := cost_model.counts_name(case), name, (0,), 1.0, [asdict(COUNTS["small"])])
    assert Model(made, CASES).ratio(case, "thin") == pytest.approx(Model(record(), CASES).ratio(CASES[0], "thin"))


def test_a_prediction_that_is_off_is_named() -> None:
    made = record()
    made.results(CASES[0].name)[0]["thin"] /= 1.5
    assert Model(made, CASES).checked()[-1] == f"More than 10 % off: 1 of 12: {CASES[0].name}, thin (+50 %)."


def test_nothing_is_said_before_anything_was_counted() -> None:
    made = record()
    made.runs = {key: run for key, run in made.runs.items() if "counts" not in key}
    model = Model(made, CASES)
    assert not model.errors(CASES[0], "thin")
    assert not model.checked()
    assert not model.split(COMPUTED[0])


@pytest.mark.parametrize("way", WAYS)
def test_larger_p_and_k_cost_less(way: str) -> None:
    network = NETWORKS["784-1000-1000-10, batch 512"]
    counts = [cost_model.count(network.build(0.0), p, network.inputs()) for p in (0.25, 0.5, 0.75)]

    def ratio(counts: Counts, k: int) -> float:
        ours, plain = (np.dot(work(counts, replace(CASES[0], k=k), each), SPEEDS) for each in (way, "plain"))
        return float(ours / plain)

    for ratios in [ratio(each, 5) for each in counts], [ratio(counts[1], k) for k in (2, 5, 10, 50)]:
        assert all(before > after for before, after in pairwise(ratios))


@pytest.mark.parametrize("name", ["784-1000-1000-10, batch 128", "encoder block 256/1024", "two ResNet blocks of 64"])
def test_kept_entries_are_those_that_a_masked_step_moves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = NETWORKS[name].inputs()[:2]
    counts = cost_model.count(NETWORKS[name].build(0.0), 0.25, x)
    model, _ = mrreg.thin(NETWORKS[name].build(0.0), p=0.25, example_inputs=x)
    seen: list[int] = []
    step = torch.optim.SGD.step

    def watched(self: torch.optim.SGD) -> None:
        seen[:] = [p.numel() for p in self.param_groups[0]["params"]]
        step(self)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    mrreg.attach(optimizer, model)
    model(x).square().mean().backward()
    optimizer.step()
    assert sum(p.numel() for p in model.parameters()) == counts.entries
    assert sum(seen) == counts.entries - counts.thin + counts.kept
