"""The benchmark of data-parallel training: what it counts, and what it computes from that."""

from collections.abc import Iterator
from dataclasses import asdict

import pytest
import torch
import torch.distributed as dist

from benchmarks.core.records import Record
from benchmarks.experiments import scale
from benchmarks.experiments.scale import ALL, BENCHMARK, DUE, METHODS, PRESETS, SGD
from benchmarks.report.verdict import judge_claim

SMOKE = PRESETS["smoke"]


@pytest.fixture
def group() -> Iterator[None]:
    """This process alone as a process group."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_entries_are_those_of_the_network() -> None:
    model = scale.network(SMOKE)
    fast = sum(p.numel() for p in model[-1].parameters())
    slow = sum(p.numel() for p in model[:-1].parameters())
    assert scale.counts(asdict(SMOKE)) == (fast, slow)


@pytest.mark.usefixtures("group")
def test_bytes_of_a_cycle() -> None:
    results = scale.measure(SMOKE, 2, torch.device("cpu"))
    fast, slow = scale.counts(asdict(SMOKE))
    assert len(results) == 2
    for result in results:
        assert result[f"{SGD} bytes"] == result[f"{ALL} bytes"] == 4 * SMOKE.k * (fast + slow)
        assert result[f"{DUE} bytes"] == 4 * (SMOKE.k * fast + slow)
        assert all(result[f"{method} seconds"] > 0 for method in METHODS)


def made_up() -> Record:
    """One rank takes 2 and 1 seconds for a cycle."""
    record = Record("scale", "cpu", asdict(PRESETS["cpu"]), "cpu", 1, {})
    result = {f"{SGD} seconds": 2.0, f"{ALL} seconds": 1.0, f"{DUE} seconds": 1.0}
    record.add("1 rank", "1 rank", (0, 1), 3.0, [result, result])
    return record


def test_measured_section_of_two_ranks() -> None:
    record = made_up()
    fast, slow = scale.counts(record.config)
    result = {f"{method} seconds": 2.0 for method in METHODS}
    result |= {f"{SGD} bytes": 20 * (fast + slow), f"{ALL} bytes": 20 * (fast + slow)}
    for sent, said in ((20 * fast + 4 * slow, "reproduced"), (20 * fast + 4 * slow + 4, "contradicted")):
        record.runs.clear()
        record.add("2 ranks", "2 ranks", (0, 1), 3.0, [result | {f"{DUE} bytes": sent}] * 2)
        measured = BENCHMARK.sections[0]
        assert [row.values(record) for row in measured.rows] == [[20 * (fast + slow) / sent] * 2, [1.0] * 2]
        assert judge_claim(measured.claims[0], record).word == said
        assert measured.facts(record)[2].startswith(
            f"2 ranks, {DUE}: {sent / 1e6:,.3f} MB a cycle, seconds: median 2.0000"
        )
