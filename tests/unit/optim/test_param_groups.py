"""`split` and `biases`: what every form of choice means, what groups come out, and what is refused."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mrreg


class Net(nn.Module):
    """Six weights, of which `out` is tied to `embed`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))
        self.layer3 = nn.Linear(4, 4)
        self.layer4 = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 7)
        self.out.weight = self.embed.weight


ALL = [
    "embed.weight",
    "body.0.weight",
    "body.0.bias",
    "body.2.weight",
    "body.2.bias",
    "layer3.weight",
    "layer3.bias",
    "layer4.weight",
    "out.bias",
]
BIASES = [name for name in ALL if name.endswith("bias")]
OUT = ["embed.weight", "out.bias"]

CHOICES: list[tuple[Callable[[Net], Any], list[str]]] = [
    (lambda m: "layer4", ["layer4.weight"]),
    (lambda m: ("layer3.bias", m.layer4), ["layer3.bias", "layer4.weight"]),
    (lambda m: "layer[34]", ["layer3.weight", "layer3.bias", "layer4.weight"]),
    (lambda m: "layer?.weight", ["layer3.weight", "layer4.weight"]),
    (lambda m: "*.bias", BIASES),
    (lambda m: np.str_("layer4"), ["layer4.weight"]),
    (lambda m: "out", OUT),
    (lambda m: "out.weight", ["embed.weight"]),
    (lambda m: m.layer3, ["layer3.weight", "layer3.bias"]),
    (lambda m: m.layer3.parameters(), ["layer3.weight", "layer3.bias"]),
    (lambda m: m.layer3.named_parameters(), ["layer3.weight", "layer3.bias"]),
    (lambda m: [m.layer3.parameters(), [m.layer4]], ["layer3.weight", "layer3.bias", "layer4.weight"]),
    (lambda m: lambda name, p: p.ndim == 1, ["body.0.bias", "body.2.weight", "body.2.bias", "layer3.bias", "out.bias"]),
    (lambda m: [lambda name, p: "layer3" in name, "layer4"], ["layer3.weight", "layer3.bias", "layer4.weight"]),
]


def parts(groups: list[dict[str, Any]]) -> list[tuple[list[str], int | None]]:
    return [(group["param_names"], group["period"]) for group in groups]


@pytest.mark.parametrize(("choose", "names"), CHOICES)
def test_a_choice_means_the_same_parameters_as_fast_and_as_slow(choose: Callable[[Net], Any], names: list[str]) -> None:
    model = Net()
    rest = [name for name in ALL if name not in names]
    assert parts(mrreg.split(model, fast=choose(model))) == [(names, 1), (rest, None)]
    assert parts(mrreg.split(model, slow=choose(model))) == [(rest, 1), (names, None)]


def test_both_given_together_cover_everything() -> None:
    model = Net()
    given = mrreg.split(model, fast=["out", "layer*"], slow="body")
    assert parts(given) == parts(mrreg.split(model, slow=model.body))


def test_a_mapping_makes_several_scales() -> None:
    groups = mrreg.split(Net(), slow={"embed": 25, "body": np.int64(5)})
    assert [(len(group["params"]), group["period"]) for group in groups] == [(4, 1), (4, 5), (1, 25)]
    assert all(type(group["period"]) is int for group in groups)


@pytest.mark.parametrize("fast", ["layer4", "layer4.weight", "layer?.weight", lambda name, p: name.startswith("layer")])
def test_prefixes_of_wrappers_may_be_left_out(fast: Any) -> None:
    model = Net()
    wrapped = mrreg.split(nn.DataParallel(nn.ModuleDict({"_orig_mod": model})), fast=fast)
    assert [group["params"] for group in mrreg.split(model, fast=fast)] == [group["params"] for group in wrapped]


def test_a_real_part_called_module_is_told_from_a_wrapper() -> None:
    model = nn.ModuleDict({"fc": nn.Linear(2, 2), "module": nn.ModuleDict({"fc": nn.Linear(2, 2)})})
    assert mrreg.split(model, fast="fc")[0]["param_names"] == ["fc.weight", "fc.bias"]
    assert mrreg.split(model, fast="module.fc")[0]["param_names"] == ["module.fc.weight", "module.fc.bias"]


def existing(model: Net) -> list[dict[str, Any]]:
    decayed = {"params": [model.layer4.weight, model.layer3.weight], "weight_decay": 0.1, "lr": 0.5, "tag": "a"}
    return [decayed, {"params": iter([model.layer3.bias]), "weight_decay": 0.0}, {"params": model.out.bias}]


def test_existing_groups_keep_order_and_options() -> None:
    model = Net()
    groups = mrreg.split(existing(model), fast=[model.layer3, model.out.bias])
    seen = [(group.pop("params"), group) for group in groups]
    assert seen == [
        ([model.layer3.weight], {"weight_decay": 0.1, "lr": 0.5, "tag": "a", "period": 1}),
        ([model.layer4.weight], {"weight_decay": 0.1, "lr": 0.5, "tag": "a", "period": None}),
        ([model.layer3.bias], {"weight_decay": 0.0, "period": 1}),
        ([model.out.bias], {"period": 1}),
    ]


def test_parameters_without_names_can_be_chosen_by_object_and_predicate() -> None:
    model = Net()
    by_object = mrreg.split(model.parameters(), fast=model.layer4)
    by_predicate = mrreg.split(model.parameters(), slow=lambda name, p: p is not model.layer4.weight)
    assert by_object == by_predicate
    assert "param_names" not in by_object[0]


def test_frozen_parameters_that_groups_leave_out_are_not_missed() -> None:
    model = Net()
    model.layer3.weight.requires_grad_(False)
    trainable = [{"params": [p for p in model.parameters() if p.requires_grad]}]
    for fast in (model.layer3, model.layer3.parameters()):
        assert mrreg.split(trainable, fast=fast)[0]["params"] == [model.layer3.bias]


BIAS_CASES: list[tuple[Callable[[Net], Any], list[str]]] = [
    (lambda m: None, BIASES),
    (lambda m: "body.0", ["body.0.bias"]),
    (lambda m: ["layer3", m.out], ["layer3.bias", "out.bias"]),
    (lambda m: "body.*", ["body.0.bias", "body.2.bias"]),
    (lambda m: lambda name, p: "layer" in name, ["layer3.bias"]),
]


@pytest.mark.parametrize(("choose", "names"), BIAS_CASES)
def test_biases_of_the_chosen_layers_are_slow(choose: Callable[[Net], Any], names: list[str]) -> None:
    model = Net()
    fast, slow = mrreg.biases(model, choose(model))
    assert (slow["param_names"], slow["period"], fast["period"]) == (names, None, 1)
    assert len(fast["params"]) + len(names) == len(ALL)
    assert parts(mrreg.biases(model.named_parameters(), choose(model))) == parts([fast, slow])


@pytest.mark.parametrize(
    ("module", "count"),
    [
        (nn.LSTM(2, 3, num_layers=2, bidirectional=True), 8),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), 4),
        (nn.Conv2d(1, 2, 3), 1),
        (nn.Bilinear(2, 2, 2), 1),
    ],
)
def test_every_torch_layer_has_its_biases_recognized(module: nn.Module, count: int) -> None:
    assert len(mrreg.biases(module)[1]["params"]) == count


NAMES = "split: fast must be the name of a module with parameters or of a parameter, or a pattern for one, got "
KINDS = "split: {} must be names, patterns, modules, parameters or predicates, got {}."
NOTHING = "split: fast must be a choice of at least one parameter, got {}."
ONCE = " An iterator such as model.parameters() is empty after its first use."

SLOW = "split: slow must be "
WHOLE = "must be a whole number, at least 1, got "
STRANGE = "split: fast must be parameters of the model, got "
REFUSED: list[tuple[type[Exception], str, Callable[[Net], dict[str, Any]]]] = [
    (ValueError, NAMES + "'layer5'. Did you mean 'layer3', 'layer4'", lambda m: {"fast": ["body", "layer5"]}),
    (ValueError, NAMES + "'q*'. There is: 'body', 'body.0',", lambda m: {"fast": "q*"}),
    (ValueError, NAMES + "'body.1'. Did you mean 'body', 'body.0', 'body.2'", lambda m: {"fast": "body.1"}),
    (ValueError, NOTHING.format("[]") + ONCE, lambda m: {"fast": []}),
    (ValueError, NOTHING.format("'a ReLU'"), lambda m: {"fast": m.body[1]}),
    (ValueError, NOTHING.format("'a function'"), lambda m: {"fast": lambda name, p: False}),
    (TypeError, KINDS.format("fast", "3"), lambda m: {"fast": 3}),
    (TypeError, KINDS.format("fast", "<class 'torch.nn.modules.linear.Linear'>"), lambda m: {"fast": nn.Linear}),
    (ValueError, "split: fast must be given, or slow, got None. Name what trains at every step: ", lambda m: {}),
    (ValueError, SLOW + "disjoint from what is already chosen, got 'body.0.bias'. Chosen twice: 'body.0.bias'.",
     lambda m: {"fast": "body", "slow": "body.0.bias"}),
    (ValueError, "Chosen twice: 'body.0.bias', 'body.0.weight'.", lambda m: {"slow": {"body": 25, "body.0": 5}}),
    (ValueError, SLOW + "everything that is not fast, got ['embed', 'layer3']. Left out: 'layer4.weight', 'out.bias'.",
     lambda m: {"fast": "body", "slow": ["embed", "layer3"]}),
    (ValueError, "split: fast must be some of the parameters, got 'all of them'. ", lambda m: {"fast": m}),
    (ValueError, SLOW + "some of the parameters, got 'all of them'. ", lambda m: {"slow": "*"}),
    (ValueError, SLOW + "a mapping with at least one entry, got {}.", lambda m: {"slow": {}}),
    (TypeError, f"split: slow['body'] {WHOLE}2.5.", lambda m: {"slow": {"body": 2.5}}),
    (ValueError, STRANGE + "'a Linear'. Choose from the model or the groups", lambda m: {"fast": nn.Linear(2, 2)}),
    (ValueError, STRANGE + "'a tensor of shape (2,)'.", lambda m: {"fast": [m.out, nn.Parameter(torch.zeros(2))]}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "arguments"), REFUSED)
def test_refused_choices(kind: type[Exception], message: str, arguments: Callable[[Net], dict[str, Any]]) -> None:
    model = Net()
    with pytest.raises(kind, match=re.escape(message)):
        mrreg.split(model, **arguments(model))


UNNAMED = "split: fast must be no name where parameters have none, got 'body'. Choose by module or parameter, or give "
MADE_OF = "split: model must be all tensors, or all pairs of name and tensor, got "

REFUSED_MODELS: list[tuple[type[Exception], str, Callable[[Net], Any]]] = [
    (TypeError, "split: model must be a module, parameters or parameter groups, got 'a int'.", lambda m: 3),
    (TypeError, "split: model must be a module, parameters or parameter groups, got 'a d", lambda m: existing(m)[0]),
    (TypeError, "split: model must be all groups with \"params\", or no groups, got 'a dict'.", lambda m: [{}]),
    (TypeError, 'split: model must be all groups with "params"', lambda m: [{"params": m.parameters()}, m.out.bias]),
    (TypeError, MADE_OF + "'a int'.", lambda m: [{"params": 3}]),
    (TypeError, MADE_OF + "'a Linear'.", lambda m: [m.out]),
    (ValueError, "split: model must be something with parameters, got []. An iterator ends after use.", lambda m: []),
    (ValueError, UNNAMED, lambda m: m.parameters()),
    (RuntimeError, "split: the model has no shape yet for 'bias', 'weight'", lambda m: nn.LazyLinear(2)),
]


@pytest.mark.parametrize(("kind", "message", "give"), REFUSED_MODELS)
def test_refused_models(kind: type[Exception], message: str, give: Callable[[Net], Any]) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        mrreg.split(give(Net()), fast="body")


def test_biases_need_names_and_layers_that_have_some() -> None:
    cases: list[Any] = [(Net().parameters(), None), (Net(), "layer4")]
    for model, layers in cases:
        with pytest.raises(ValueError, match=r"biases: layers must be a choice with at least one bias.*cannot be told"):
            mrreg.biases(model, layers)


def test_a_stranger_that_is_frozen_alone_is_no_choice() -> None:
    stranger: Tensor = nn.Parameter(torch.zeros(2), requires_grad=False)
    with pytest.raises(ValueError, match="a choice of at least one parameter"):
        mrreg.split(Net(), fast=stranger)
