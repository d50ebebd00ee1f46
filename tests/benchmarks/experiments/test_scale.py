"""The benchmark of data-parallel training: what it counts, and what it computes from that."""

from collections.abc import Iterator
from dataclasses import asdict

import pytest
import torch
import torch.distributed as dist

from benchmarks.core.records import Record
from benchmarks.experiments import scale
from benchmarks.experiments.scale import ALL, BENCHMARK, DUE, GPUS, METHODS, NETWORKS, PRESETS, SGD
from benchmarks.report.verdict import judge_claim

SMOKE = PRESETS["smoke"]


@pytest.fixture
def group() -> Iterator[None]:
    """This process alone as a process group."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("ranks", "size", "latency", "bandwidth", "seconds"),
    [
        (2, 1e9, 0.0, 1e9, 1.0),  # each rank sends half of it twice
        (4, 1e9, 0.0, 1e9, 1.5),
        (4, 1e9, 0.1, 1e9, 2.1),
        (4, 0, 0.1, 1e9, 0.0),  # nothing due, nothing sent
    ],
)
def test_ring(ranks: int, size: float, latency: float, bandwidth: float, seconds: float) -> None:
    assert scale.ring_seconds(ranks, size, latency, bandwidth) == pytest.approx(seconds)


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


def test_projection_adds_what_every_step_sends() -> None:
    record = made_up()
    k, (fast, slow) = record.config["k"], scale.counts(record.config)
    slowest = NETWORKS[0]
    seconds = scale.projected(record, 8, slowest.name)
    full, small = (
        scale.ring_seconds(8, 4 * entries, slowest.latency, slowest.bandwidth) for entries in (fast + slow, fast)
    )
    assert seconds[SGD] == pytest.approx([2 + k * full] * 2)
    assert seconds[ALL] == pytest.approx([1 + k * full] * 2)
    assert seconds[DUE] == pytest.approx([1 + full + (k - 1) * small] * 2)
    assert scale.speedup(8, slowest, SGD)(record) == pytest.approx([(2 + k * full) / (1 + full + (k - 1) * small)] * 2)


def test_projection_uses_the_network_of_the_record() -> None:
    record = made_up()
    record.config["networks"][0]["bandwidth"] = 1e30
    record.config["networks"][0]["latency"] = 0.0
    assert scale.projected(record, 1024, NETWORKS[0].name)[SGD] == pytest.approx([2.0, 2.0])


def test_table_has_a_row_for_every_number_of_gpus() -> None:
    labels = [row.label for row in BENCHMARK.sections[1].rows]
    assert len(labels) == len(GPUS) * len(NETWORKS) == 24
    assert labels[0] == "8 GPUs, 10 Gbit/s, 50 µs"
    assert labels[-1] == "1,024 GPUs, 400 Gbit/s, 5 µs"
    assert len(BENCHMARK.sections[1].facts(made_up())) == 6


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
