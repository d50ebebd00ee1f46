"""The text benchmark as data: recipes, runs, what the report is told."""

from typing import Any

import pytest
import torch

from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text import tables as text
from benchmarks.experiments.text.data import Task, Texts
from benchmarks.experiments.text.recipes import Recipe, Setting


def prepared(recipe: Recipe) -> tuple[text_model.Classifier, torch.optim.Optimizer]:
    net = text_model.encoder("tiny", 2)
    return net, recipe.prepare(net)


def rate(group: dict[str, Any]) -> float:
    return float(group["lr"] / (group["period"] if group.get("slow_lr") == "per_gradient" else 1))


def periods(net: text_model.Classifier, optimizer: torch.optim.Optimizer) -> dict[str, tuple[int, float]]:
    """Period of each parameter that trains, and the lr of its steps."""
    names = {id(parameter): label for label, parameter in net.named_parameters()}
    return {
        names[id(parameter)]: (group.get("period", 1), rate(group))
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_full_fine_tuning_is_the_plain_optimizer_over_everything() -> None:
    net, optimizer = prepared(Recipe(lr=0.1))
    assert type(optimizer) is torch.optim.SGD
    assert optimizer.param_groups[0]["momentum"] == 0.9
    assert len(periods(net, optimizer)) == len(list(net.parameters()))


def test_what_is_frozen_wants_no_gradient_and_is_not_in_the_optimizer() -> None:
    net, optimizer = prepared(Recipe("half", optimizer="AdamW"))
    assert type(optimizer) is torch.optim.AdamW
    trained = periods(net, optimizer).keys()
    assert {label for label, parameter in net.named_parameters() if parameter.requires_grad} == trained
    assert "fc.weight" in trained
    assert all(label.startswith(("fc.", "encoder.encoder.layer.1.")) for label in trained)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_fast_part_has_period_1_and_the_rest_k(optimizer: Any) -> None:
    net, stepper = prepared(Recipe(fast="head", k=4, optimizer=optimizer, lr=0.2, slow_lr="per_gradient"))
    found = periods(net, stepper)
    assert {label for label, (period, _) in found.items() if period == 1} == {"fc.weight", "fc.bias"}
    assert {value for label, value in found.items() if not label.startswith("fc.")} == {(4, 0.05)}
    assert len(found) == len(list(net.parameters()))


def test_a_part_of_a_task_is_drawn_by_the_seed_and_the_dev_texts_are_not() -> None:
    texts = Texts(torch.arange(20)[:, None], torch.ones(20, dtype=torch.long), torch.arange(20))
    setting = Setting("SST-2", {}, texts=5, dev=3)
    one, same, other = (text.part_of(Task(texts, texts, 2), setting, seed) for seed in (1, 1, 2))
    assert torch.equal(one.train.y, same.train.y)
    assert not torch.equal(one.train.y, other.train.y)
    assert len(one.train) == 5
    assert one.dev.y.tolist() == [0, 1, 2]
