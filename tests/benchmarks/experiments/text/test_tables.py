"""The text benchmark as data: recipes, runs, what the report is told."""

from typing import Any

import pytest
import torch

from benchmarks.core.records import Record, new
from benchmarks.core.sections import Curves
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text import tables as text
from benchmarks.experiments.text.data import Task, Texts
from benchmarks.experiments.text.recipes import Recipe, Trainee
from benchmarks.experiments.text.tables import STUDY, Setting
from benchmarks.experiments.text.tables_report import FULL, METHODS, faster, name


def prepared(recipe: Recipe) -> tuple[text_model.Classifier, Trainee]:
    net = text_model.encoder("tiny", 2, 0)
    return net, recipe.prepare(net)


def rate(group: dict[str, Any]) -> float:
    return float(group["lr"] / (group["period"] if group.get("slow_lr") == "per_gradient" else 1))


def periods(net: text_model.Classifier, trainee: Trainee) -> dict[str, tuple[int, float]]:
    """Period of each parameter that trains, and the lr of its steps."""
    names = {id(parameter): label for label, parameter in net.named_parameters()}
    return {
        names[id(parameter)]: (group.get("period", 1), rate(group))
        for group in trainee.optimizer.param_groups
        for parameter in group["params"]
    }


def test_full_fine_tuning_is_the_plain_optimizer_over_everything() -> None:
    net, trainee = prepared(Recipe(lr=0.1))
    assert type(trainee.optimizer) is torch.optim.SGD
    assert trainee.optimizer.param_groups[0]["momentum"] == 0.9
    assert len(periods(net, trainee)) == len(list(net.parameters()))


def test_what_is_frozen_wants_no_gradient_and_is_not_in_the_optimizer() -> None:
    net, trainee = prepared(Recipe("half", optimizer="AdamW"))
    assert type(trainee.optimizer) is torch.optim.AdamW
    trained = periods(net, trainee).keys()
    assert {label for label, parameter in net.named_parameters() if parameter.requires_grad} == trained
    assert "fc.weight" in trained
    assert all(label.startswith(("fc.", "encoder.encoder.layer.1.")) for label in trained)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_fast_part_has_period_1_and_the_rest_k(optimizer: Any) -> None:
    net, trainee = prepared(Recipe(fast="head", k=4, optimizer=optimizer, lr=0.2, slow_lr="per_gradient"))
    found = periods(net, trainee)
    assert {label for label, (period, _) in found.items() if period == 1} == {"fc.weight", "fc.bias"}
    assert {value for label, value in found.items() if not label.startswith("fc.")} == {(4, 0.05)}
    assert len(found) == len(list(net.parameters()))


def test_the_coupled_lr_is_the_same_for_both() -> None:
    net, trainee = prepared(Recipe("layers", "last", lr=0.2))
    found = periods(net, trainee)
    assert {lr for _, lr in found.values()} == {0.2}
    assert not any("embeddings" in label for label in found)


def test_recipes_of_a_table_have_names_of_their_own() -> None:
    for recipes in METHODS.values():
        assert len({recipe.name for recipe in recipes}) == len(recipes)
    assert Recipe(fast="head", slow_lr="per_gradient").name == "classifier fast, k = 5, slow lr / k"
    assert Recipe("layers", "half", 2, drift=False).name == "half fast, k = 2, no drift, embeddings frozen"


def test_glue_settings_are_the_papers() -> None:
    settings = {setting.name: setting for setting in text.PRESETS["paper"].glue}
    assert {each: (it.k, it.lr["SGD"], it.weight_decay, it.fast, it.batch) for each, it in settings.items()} == {
        "WNLI": (4, 1e-4, 0.0, "last", 16),
        "RTE": (4, 5e-4, 0.0, "last 2", 16),
        "QNLI": (2, 5e-4, 5e-4, "last 2", 16),
        "MNLI": (2, 3e-3, 5e-4, "last", 32),
    }
    recipes = text.glue_recipes(settings["MNLI"])
    assert recipes["MNLI: full"] == Recipe(lr=3e-3, weight_decay=5e-4)
    assert recipes["MNLI: multirate"] == Recipe(fast="last", k=2, lr=3e-3, weight_decay=5e-4)


@pytest.mark.parametrize("preset", text.PRESETS)
def test_runs_are_distinct_and_every_method_has_every_seed(preset: str) -> None:
    config = text.PRESETS[preset]
    runs = STUDY.runs(config)
    assert len({run.key for run in runs}) == len(runs)
    seeds: dict[str, list[int]] = {}
    for run in runs:
        seeds.setdefault(run.method, []).extend(run.seeds)
    assert all(found == list(range(config.seeds)) for found in seeds.values())
    found = [each for each in text.comparisons(config) if each.setting is config.sst2]
    assert {method.lr for each in found for method in each.methods.values()} == set(config.sst2.lr.values())


def made(numbers: dict[str, dict[str, float]]) -> Record:
    record = new("text", "cpu", text.PRESETS["cpu"], torch.device("cpu"))
    for method, result in numbers.items():
        record.add(method, method, (0,), 1.0, [result])
    return record


def test_every_row_and_claim_finds_a_run() -> None:
    for section, preset in ((section, preset) for section in text.BENCHMARK.sections for preset in ("cpu", "paper")):
        if preset not in (section.presets or {preset}):
            continue
        known = {run.method: {"accuracy": 80.0, "seconds": 2.0} for run in STUDY.runs(text.PRESETS[preset])}
        record = made(known)
        assert all(row.values(record) for row in section.rows), section.title
        assert all(claim.values(record) for claim in section.claims), section.title


def test_faster_is_the_ratio_of_seconds() -> None:
    record = made({name(FULL): {"seconds": 6.0}, "other": {"seconds": 2.0}})
    assert faster("other", name(FULL))(record) == [3.0]


def test_a_part_of_a_task_is_drawn_by_the_seed_and_the_dev_texts_are_not() -> None:
    texts = Texts(torch.arange(20)[:, None], torch.ones(20, dtype=torch.long), torch.arange(20))
    setting = Setting("SST-2", {}, texts=5, dev=3)
    one, same, other = (text.part_of(Task(texts, texts, 2), setting, seed) for seed in (1, 1, 2))
    assert torch.equal(one.train.y, same.train.y)
    assert not torch.equal(one.train.y, other.train.y)
    assert len(one.train) == 5
    assert one.dev.y.tolist() == [0, 1, 2]


def test_curves_are_kept_where_they_are_drawn() -> None:
    (plot,) = (plot for section in text.BENCHMARK.sections for plot in section.plots if isinstance(plot, Curves))
    curved = [each for each in text.comparisons(text.PRESETS["cpu"]) if len(each.budgets) > 1]
    assert [set(each.methods) for each in curved] == [set(plot.methods.values())]
    assert curved[0].budgets == (32, 64)  # two epochs of 512 texts in batches of 16


def test_an_epoch_ends_with_the_last_whole_batch() -> None:
    ends = {each.setting.name: each.budgets[-1] for each in text.comparisons(text.PRESETS["paper"])}
    assert ends == {
        "SST-2": 67_349 // 16,
        "WNLI": 3 * (635 // 16),
        "RTE": 3 * (2490 // 16),
        "QNLI": 6546,
        "MNLI": 12271,
    }
