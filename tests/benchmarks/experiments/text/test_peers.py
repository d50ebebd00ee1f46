"""The peers: which parameters move in which steps, the memory of a step, and the benchmark around them."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.core import runner as harness
from benchmarks.core.records import Record, load
from benchmarks.core.training import Batch, Loop
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text import peers as text_peers
from benchmarks.experiments.text.data import Task, Texts
from benchmarks.experiments.text.encoder import Classifier
from benchmarks.experiments.text.memory import most_mib
from benchmarks.experiments.text.peer_methods import (
    ACTIVE,
    METHODS,
    RATES,
    SWITCH,
    block_adam,
    low_rank,
    random_layers,
    recipe,
)
from benchmarks.experiments.text.recipes import Trainee, loop


@pytest.fixture
def net() -> Classifier:
    return text_model.encoder("tiny", 2, 0)


def batch() -> Batch:
    y = torch.arange(8) % 2
    return Texts(torch.full((8, 4), 3) + y[:, None], torch.full((8,), 4), y).batch(torch.arange(8))


def looped(trainee: Trainee) -> Loop:
    """The training of a trainee on one batch again and again."""
    return Loop(trainee.model, trainee.optimizer, itertools.repeat(batch()), scheduler=trainee.scheduler)


def one_step(trainee: Trainee) -> None:
    looped(trainee).step()


def moved(trainee: Trainee, net: Classifier) -> set[str]:
    """Which parts one step moves: "head", the number of a layer, "embeddings", or "added"."""
    head, *layers, embeddings = net.part("all")
    names = {"head": head, **{str(index): layer for index, layer in enumerate(layers)}, "embeddings": embeddings}
    parts = {id(p): part for part, module in names.items() for p in module.parameters()}
    before = [(p, p.detach().clone()) for p in trainee.model.parameters()]
    one_step(trainee)
    return {parts.get(id(p), "added") for p, old in before if not torch.equal(p, old)}


def test_lora_moves_what_it_adds_and_a_copy_of_the_classifier(net: Classifier) -> None:
    names = {id(p): name for name, p in net.named_parameters()}
    trainee = low_rank(net, 1e-2, 0)
    seen = set.union(*(moved(trainee, net) for _ in range(3)))
    trained = [name for name, p in trainee.model.named_parameters() if p.requires_grad]
    assert seen & {"0", "1", "embeddings"} == {"0", "1"}  # where its matrices live, inside the layers
    assert all("lora_" in name or "fc" in name for name in trained)
    assert not [name for key, name in names.items() if key in {id(p) for p in trainee.optimizer.state}]
    assert len(trained) == 2 * 2 * 2 + 2  # two matrices each for query and value of two layers; weight and bias


def test_lora_begins_where_the_network_is(net: Classifier) -> None:
    ids, mask, _ = batch()
    expected = net.eval()(ids, mask)
    torch.testing.assert_close(low_rank(net, 1e-2, 0).model.eval()(ids, mask), expected)


def test_badam_moves_one_layer_at_a_time_from_the_last_to_the_first(net: Classifier) -> None:
    trainee = block_adam(net, 1e-2, 0)
    seen = [moved(trainee, net) for _ in range(2 * SWITCH + 1)]
    assert seen == [{"head", "1"}] * (SWITCH - 1) + [{"head", "0"}] * SWITCH + [{"head", "1"}] * 2


def test_badam_prints_nothing(net: Classifier, capsys: pytest.CaptureFixture[str]) -> None:
    trainee = block_adam(net, 1e-2, 0)
    for _ in range(SWITCH + 1):
        one_step(trainee)
    assert capsys.readouterr() == ("", "")


def test_badam_takes_steps_of_adamw(net: Classifier) -> None:
    other = text_model.encoder("tiny", 2, 0)
    other.requires_grad_(False)
    for module in other.part("last 1"):
        module.requires_grad_(True)
    plain = Trainee(other, torch.optim.AdamW(other.parameters_of("last 1"), lr=1e-2, weight_decay=0.0))
    trainee = block_adam(net, 1e-2, 0)
    for _ in range(SWITCH - 1):
        one_step(trainee)
        one_step(plain)
    torch.testing.assert_close(dict(net.named_parameters()), dict(other.named_parameters()))


def layered(count: int = 6) -> Classifier:
    layers = [nn.Linear(2, 2) for _ in range(count)]
    return Classifier(nn.Sequential(*layers), nn.Embedding(3, 2), layers, 2, 2)


def active(net: Classifier) -> list[int]:
    return [index for index, layer in enumerate(net.part("layers")[1:]) if next(layer.parameters()).requires_grad]


def test_random_layers_are_drawn_anew_and_the_rest_always_trains() -> None:
    net = layered()
    trainee = random_layers(net, 1e-2, 0)
    drawn = []
    for _ in range(20):
        drawn.append(tuple(active(net)))
        for _ in range(SWITCH - 1):
            trainee.scheduler.step()
            assert tuple(active(net)) == drawn[-1]
        trainee.scheduler.step()
    assert {len(each) for each in drawn} == {ACTIVE}
    assert set(itertools.chain(*drawn)) == set(range(6))
    assert all(p.requires_grad for module in (net.fc, net.part("all")[-1]) for p in module.parameters())


def test_random_layers_follow_from_the_seed() -> None:
    def drawn(seed: int) -> list[int]:
        net = layered(40)
        random_layers(net, 1e-2, seed)
        return active(net)

    assert drawn(1) == drawn(1) != drawn(2)


def test_resting_layers_do_not_move_and_have_no_state(monkeypatch: pytest.MonkeyPatch, net: Classifier) -> None:
    monkeypatch.setattr("benchmarks.experiments.text.peer_methods.ACTIVE", 1)
    monkeypatch.setattr("benchmarks.experiments.text.peer_methods.SWITCH", 2)
    trainee = random_layers(net, 1e-2, 0)
    for _ in range(12):
        on = active(net)
        assert moved(trainee, net) == {"head", "embeddings", *map(str, on)}
        rest = set(range(2)) - set(active(net))
        resting = [p for index in rest for p in net.part("layers")[1 + index].parameters()]
        assert not [p for p in resting if p in trainee.optimizer.state or p.grad is not None]


@pytest.mark.parametrize("method", ["full fine-tuning", "half fast, k = 5", "LoRA", "random layers"])
@pytest.mark.parametrize("stop", [3, 5, SWITCH])
def test_a_training_cut_short_goes_on_to_the_bit(method: str, stop: int) -> None:
    y = torch.arange(12) % 2
    texts = Texts(torch.full((12, 4), 3) + y[:, None], torch.full((12,), 4), y)

    def begun() -> Loop:
        net = text_model.encoder("tiny", 2, 0)
        return loop(METHODS[method].prepare(net, 1e-2, 0), texts, 4, 0, {})

    whole, first, second = begun(), begun(), begun()
    for step in range(SWITCH + 3):
        whole.step()
        if step < stop:
            first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(stop, SWITCH + 3):
        second.step()
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_memory_counts_gradients_and_state_and_what_autograd_saves(net: Classifier) -> None:
    weights = sum(p.nbytes for p in net.parameters()) / 2**20
    full = most_mib(looped(recipe()(net, 1e-3, 0)), 2)
    other = text_model.encoder("tiny", 2, 0)
    head = most_mib(looped(recipe(trained="head")(other, 1e-3, 0)), 2)
    assert full > 3 * weights
    assert head < full / 2


def test_copies_of_weights_count(net: Classifier) -> None:
    layer = sum(p.nbytes for p in net.parameters_of("last 1")) / 2**20
    plain = recipe(trained="last 1")(text_model.encoder("tiny", 2, 0), 1e-3, 0)
    more = most_mib(looped(block_adam(net, 1e-3, 0)), 2) - most_mib(looped(plain), 2)
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
    for name, peer in METHODS.items():
        (result,) = record.results(name).values()
        assert 0 <= result["accuracy at equal seconds"] <= 100
        assert 0 <= result["accuracy at equal epochs"] <= 100
        assert result["lr"] in [rate * peer.rate * config.lr for rate in RATES]
        assert result["steps at equal seconds"] >= 1
    assert record.results("full fine-tuning")[0]["steps at equal seconds"] == 2
    for section in text_peers.BENCHMARK.sections:
        assert all(row.values(record) for row in section.rows), section.title
        assert all(claim.values(record) for claim in section.claims), section.title
        assert record.results(f"lr {result['lr']:g}, {name}")[1000].keys() == {"held out", "lr"}
        assert record.results("costs")[0][f"MiB, {name}"] > 0
    facts = [fact for section in text_peers.BENCHMARK.sections for fact in section.facts(record)]
    assert len([fact for fact in facts if "against full fine-tuning" in fact]) == 2 * (len(METHODS) - 1)
    assert any("LoRA 0.00" in fact for fact in facts if fact.startswith("Chosen lr"))


def test_older_records_still_say_what_a_changing_k_gave() -> None:
    record = Record("text-peers", "cpu", {}, "cpu", 1, {})
    for name, accuracy in (("full fine-tuning", 70.0), ("half fast, k = 2 to 10", 72.0)):
        record.add(name, name, (0, 1), 1.0, [{"accuracy at equal seconds": accuracy + n, "lr": 5e-5} for n in range(2)])
    said = text_peers.BENCHMARK.sections[0].facts(record)
    assert said[0].startswith("half fast, k = 2 to 10 minus full fine-tuning: +2.00 points")
    assert said[-1] == "A k that changes, in this record only: half fast, k = 2 to 10 72.50 +- 6.35 %."
