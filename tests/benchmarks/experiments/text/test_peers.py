"""The peers: which parameters move in which steps; the schedules of k; what a step costs; the benchmark around them."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mrreg
from benchmarks.core import runner as harness
from benchmarks.core.errors import UserError
from benchmarks.core.records import load
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text import peers as text_peers
from benchmarks.experiments.text.data import Task, Texts
from benchmarks.experiments.text.encoder import Classifier
from benchmarks.experiments.text.peer_costs import Meter, kind, most_bytes, step_costs
from benchmarks.experiments.text.peer_methods import (
    ACTIVE,
    SWITCH,
    Prepare,
    block_adam,
    low_rank,
    random_layers,
    recipe,
)
from benchmarks.experiments.text.schedules import (
    LEAST,
    MOST,
    AdaptiveK,
    adaptive,
    agreement,
    divide_lr,
    schedule,
    slow_groups,
)
from benchmarks.experiments.text.training import Batch, Trainee, one_step


@pytest.fixture
def net() -> Classifier:
    return text_model.encoder("tiny", 2, 0)


def batch() -> Batch:
    y = torch.arange(8) % 2
    return Texts(torch.full((8, 4), 3) + y[:, None], torch.full((8,), 4), y).batch(torch.arange(8))


def nowhere() -> float:
    return 0.0


def moved(trainee: Trainee, net: Classifier) -> set[str]:
    """Which parts one step moves: "head", the number of a layer, "embeddings", or "added"."""
    head, *layers, embeddings = net.part("all")
    names = {"head": head, **{str(index): layer for index, layer in enumerate(layers)}, "embeddings": embeddings}
    parts = {id(p): part for part, module in names.items() for p in module.parameters()}
    before = [(p, p.detach().clone()) for p in trainee.model.parameters()]
    one_step(trainee, batch())
    return {parts.get(id(p), "added") for p, old in before if not torch.equal(p, old)}


def test_lora_moves_what_it_adds_and_a_copy_of_the_classifier(net: Classifier) -> None:
    names = {id(p): name for name, p in net.named_parameters()}
    trainee = low_rank(net, 1e-2, 0, nowhere)
    seen = set.union(*(moved(trainee, net) for _ in range(3)))
    trained = [name for name, p in trainee.model.named_parameters() if p.requires_grad]
    assert seen & {"0", "1", "embeddings"} == {"0", "1"}  # where its matrices live, inside the layers
    assert all("lora_" in name or "fc" in name for name in trained)
    assert not [name for key, name in names.items() if key in {id(p) for p in trainee.optimizer.state}]
    assert len(trained) == 2 * 2 * 2 + 2  # two matrices each for query and value of two layers; weight and bias


def test_lora_begins_where_the_network_is(net: Classifier) -> None:
    ids, mask, _ = batch()
    expected = net.eval()(ids, mask)
    torch.testing.assert_close(low_rank(net, 1e-2, 0, nowhere).model.eval()(ids, mask), expected)


@pytest.mark.parametrize(("package", "method"), [("peft", low_rank), ("badam", block_adam)])
def test_a_package_that_is_not_there_is_named(
    net: Classifier, monkeypatch: pytest.MonkeyPatch, package: str, method: Prepare
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"needs {package}. Install it"):
        method(net, 1e-2, 0, nowhere)


def test_badam_moves_one_layer_at_a_time_from_the_last_to_the_first(net: Classifier) -> None:
    trainee = block_adam(net, 1e-2, 0, nowhere)
    seen = [moved(trainee, net) for _ in range(2 * SWITCH + 1)]
    assert seen == [{"head", "1"}] * (SWITCH - 1) + [{"head", "0"}] * SWITCH + [{"head", "1"}] * 2


def test_badam_prints_nothing(net: Classifier, capsys: pytest.CaptureFixture[str]) -> None:
    trainee = block_adam(net, 1e-2, 0, nowhere)
    for _ in range(SWITCH + 1):
        one_step(trainee, batch())
    assert capsys.readouterr() == ("", "")


def test_badam_takes_steps_of_adamw(net: Classifier) -> None:
    other = text_model.encoder("tiny", 2, 0)
    other.requires_grad_(False)
    for module in other.part("last 1"):
        module.requires_grad_(True)
    plain = Trainee(other, torch.optim.AdamW(other.parameters_of("last 1"), lr=1e-2, weight_decay=0.0))
    trainee = block_adam(net, 1e-2, 0, nowhere)
    for _ in range(SWITCH - 1):
        one_step(trainee, batch())
        one_step(plain, batch())
    torch.testing.assert_close(dict(net.named_parameters()), dict(other.named_parameters()))


def layered(count: int = 6) -> Classifier:
    layers = [nn.Linear(2, 2) for _ in range(count)]
    return Classifier(nn.Sequential(*layers), nn.Embedding(3, 2), layers, 2, 2)


def active(net: Classifier) -> list[int]:
    return [index for index, layer in enumerate(net.part("layers")[1:]) if next(layer.parameters()).requires_grad]


def test_random_layers_are_drawn_anew_and_the_rest_always_trains() -> None:
    net = layered()
    trainee = random_layers(net, 1e-2, 0, nowhere)
    drawn = []
    for _ in range(20):
        drawn.append(tuple(active(net)))
        for _ in range(SWITCH - 1):
            trainee.after()
            assert tuple(active(net)) == drawn[-1]
        trainee.after()
    assert {len(each) for each in drawn} == {ACTIVE}
    assert set(itertools.chain(*drawn)) == set(range(6))
    assert all(p.requires_grad for module in (net.fc, net.part("all")[-1]) for p in module.parameters())


def test_random_layers_follow_from_the_seed() -> None:
    def drawn(seed: int) -> list[int]:
        net = layered(40)
        random_layers(net, 1e-2, seed, nowhere)
        return active(net)

    assert drawn(1) == drawn(1) != drawn(2)


def test_resting_layers_do_not_move_and_have_no_state(monkeypatch: pytest.MonkeyPatch, net: Classifier) -> None:
    monkeypatch.setattr("benchmarks.experiments.text.peer_methods.ACTIVE", 1)
    monkeypatch.setattr("benchmarks.experiments.text.peer_methods.SWITCH", 2)
    trainee = random_layers(net, 1e-2, 0, nowhere)
    for _ in range(12):
        on = active(net)
        assert moved(trainee, net) == {"head", "embeddings", *map(str, on)}
        rest = set(range(2)) - set(active(net))
        resting = [p for index in rest for p in net.part("layers")[1 + index].parameters()]
        assert not [p for p in resting if p in trainee.optimizer.state or p.grad is not None]


def periods(trainee: Trainee, steps: int, after: int = 0) -> Iterator[int]:
    for _ in range(steps):
        one_step(trainee, batch())
        yield slow_groups(trainee.optimizer)[0]["period"]


@pytest.mark.parametrize(("first", "last"), [(2, 10), (10, 2)])
def test_a_schedule_goes_from_first_to_last_with_the_budget(net: Classifier, first: int, last: int) -> None:
    spent = [0.0]
    trainee = schedule(first, last)(net, 1e-3, 0, lambda: spent[0])
    syncs, lrs = [], []
    for step in range(90):
        spent[0] = step / 50
        if all(trainee.optimizer.due):  # type: ignore[attr-defined]
            syncs.append(step)
        one_step(trainee, batch())
        (group,) = slow_groups(trainee.optimizer)
        lrs.append((group["lr"], group["next_sync"] - group["last_sync"]))
    gaps = [later - earlier for earlier, later in itertools.pairwise(syncs)]
    assert gaps[0] == first
    assert gaps[-1] == last
    assert gaps == sorted(gaps, reverse=first > last)
    assert all(lr == pytest.approx(1e-3 / distance) for lr, distance in lrs)


def two_rates() -> tuple[nn.Parameter, mrreg.MultirateSGD]:
    fast, slow = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2, 3))
    fast.grad = torch.ones(1)
    groups: list[dict[str, Any]] = [{"params": [fast], "period": 1}, {"params": [slow], "period": None}]
    return slow, mrreg.MultirateSGD(groups, lr=0.1, k=5, slow_lr="per_gradient", momentum=0.5)


def test_agreement_is_the_cosine_of_held_direction_and_gradient() -> None:
    slow, optimizer = two_rates()
    slow.grad = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    assert agreement(optimizer, slow_groups(optimizer)) is None
    optimizer.step()
    assert agreement(optimizer, slow_groups(optimizer)) == pytest.approx(1)
    slow.grad = torch.tensor([[6.0, 5, 4], [3, 2, 1]])
    assert agreement(optimizer, slow_groups(optimizer)) == pytest.approx(56 / 91)
    slow.grad = torch.zeros(2, 3)
    assert agreement(optimizer, slow_groups(optimizer)) is None


@pytest.mark.parametrize(("turn", "expected"), [(1.0, [6, 7, 8, 9, 10, 10]), (-10.0, [4, 3, 2, 2, 2, 2])])
def test_k_rises_where_the_direction_still_fits_and_falls_where_it_does_not(turn: float, expected: list[int]) -> None:
    slow, optimizer = two_rates()
    adapt = AdaptiveK(optimizer)
    divide_lr(optimizer, 0.1)
    slow.grad = torch.ones(2, 3)
    while len(adapt.periods) < len(expected):
        if optimizer.due[1]:
            slow.grad = slow.grad * turn
        optimizer.step()
        (group,) = slow_groups(optimizer)
        assert group["lr"] == pytest.approx(0.1 / (group["next_sync"] - group["last_sync"]))
    assert adapt.periods == expected
    assert (min(expected), max(expected)) in [(LEAST, 5 - 1), (5 + 1, MOST)]
    assert adapt.notes()["mean cosine"] == pytest.approx(1 if turn > 0 else -1)


def test_an_adaptive_run_notes_its_cosine(net: Classifier) -> None:
    trainee = adaptive(net, 1e-3, 0, nowhere)
    list(periods(trainee, 12))
    notes = trainee.notes()  # type: ignore[attr-defined]
    assert 0 < notes["mean cosine"] <= 1  # the same batch again and again
    assert 5 < notes["mean k"] <= 10


def test_a_meter_charges_each_step_by_its_kind(net: Classifier) -> None:
    trainee = recipe(fast="head", k=5)(net, 1e-3, 0, nowhere)
    meter = Meter({"full": 1.0, "fast": 0.25}, budget=4.0)
    kinds = []
    while not meter.is_full(trainee.optimizer):
        kinds.append(kind(trainee.optimizer))
        meter.step(trainee, batch())
    assert kinds == ["full", *["fast"] * 4] * 2
    assert (meter.spent, meter.steps, meter.progress()) == (4.0, 10, 1.0)


def test_costs_are_those_of_each_kind(net: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    trainee = recipe(fast="head", k=5)(net, 1e-3, 0, nowhere)

    def fake(each: Trainee, where: Batch) -> float:
        cost = (10.0 if kind(each.optimizer) == "full" else 1.0) * len(where[2])
        each.optimizer.step()
        return cost

    monkeypatch.setattr("benchmarks.experiments.text.peer_costs.one_step", fake)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter) + 1
    ids, mask, y = batch()
    drawn = [(ids[:n], mask[:n], y[:n]) for n in (2, 4, 6)]
    assert step_costs({"two": trainee}, drawn, 5) == {"two": {"full": 40.0, "fast": 4.0}}


def test_memory_counts_gradients_and_state_and_what_autograd_saves(net: Classifier) -> None:
    weights = sum(p.nbytes for p in net.parameters()) / 2**20
    full = most_bytes(recipe()(net, 1e-3, 0, nowhere), batch(), 2)
    other = text_model.encoder("tiny", 2, 0)
    head = most_bytes(recipe(trained="head")(other, 1e-3, 0, nowhere), batch(), 2)
    assert full > 3 * weights
    assert head < full / 2


def test_copies_of_weights_count(net: Classifier) -> None:
    layer = sum(p.nbytes for p in net.parameters_of("last 1")) / 2**20
    plain = recipe(trained="last 1")(text_model.encoder("tiny", 2, 0), 1e-3, 0, nowhere)
    more = most_bytes(block_adam(net, 1e-3, 0, nowhere), batch(), 2) - most_bytes(plain, batch(), 2)
    assert more == pytest.approx(layer, rel=0.01)


@pytest.mark.slow
def test_a_smoke_run_has_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: Classifier) -> None:
    texts = Texts(torch.full((64, 4), 3), torch.full((64,), 4), torch.arange(64) % 2)
    task = Task(texts, texts[:8], 2)
    monkeypatch.setattr("benchmarks.experiments.text.data.load", lambda *_: task)
    config = replace(text_peers.PRESETS["smoke"], encoder="tiny", steps=2, trials=2)
    benchmark = replace(text_peers.BENCHMARK, presets={"smoke": config})
    outcome = harness.run(benchmark, "smoke", tmp_path)
    record = load(outcome.path)
    assert outcome.finished == outcome.total
    for name, peer in text_peers.METHODS.items():
        (result,) = record.results(name).values()
        assert 0 <= result["accuracy at equal seconds"] <= 100
        assert 0 <= result["accuracy at equal epochs"] <= 100
        assert result["lr"] in [rate * peer.rate * config.lr for rate in text_peers.RATES]
        assert result["steps at equal seconds"] >= 1
    assert record.results("full fine-tuning")[0]["steps at equal seconds"] == 2
    for section in text_peers.BENCHMARK.sections:
        assert all(row.values(record) for row in section.rows), section.title
        assert all(claim.values(record) for claim in section.claims), section.title
    facts = [fact for section in text_peers.BENCHMARK.sections for fact in section.facts(record)]
    assert len([fact for fact in facts if "against full fine-tuning" in fact]) == 2 * (len(text_peers.METHODS) - 1)
    assert any("LoRA 0.00" in fact for fact in facts if fact.startswith("Chosen lr"))
