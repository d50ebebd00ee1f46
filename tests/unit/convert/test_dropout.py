"""What stands for a dropout in all kinds of forwards, what is left and why; looking leaves no trace."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.masks import of
from helpers.thin import mask_of
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import mrreg
from mrreg.convert.sites import NOBODY


class Net(nn.Module):
    """Modules by name and the forward that uses them."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.steps = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: Any) -> Any:
        return self.steps(self, *args)


class Doubling(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight * 2)


class Halving(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return input / 2


class Transposed(nn.Module):
    """Linear with its weight the other way round, as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


def linear() -> nn.Module:
    return nn.Linear(6, 6)


def attention() -> nn.Module:
    return nn.MultiheadAttention(6, 2, batch_first=True)


def net(forward: Callable[..., Any], **more: nn.Module) -> Net:
    return Net(forward, **{"one": linear(), "drop": nn.Dropout(0.5), "two": linear(), **more})


def tied() -> nn.Module:
    model = net(lambda m, x: m.two(m.drop(m.one(x))).sum())
    model.get_submodule("two").weight = model.get_submodule("one").weight
    return model


def chain(m: Any, x: Tensor) -> Tensor:
    x = m.drop(F.gelu(m.one(x)))
    return m.three(m.drop(F.gelu(m.two(x))))  # type: ignore[no-any-return]


def in_place(m: Any, x: Tensor) -> Tensor:
    y = m.one(x)
    y = m.drop(y)
    y += x
    return y  # type: ignore[no-any-return]


MASKED: dict[str, tuple[nn.Module, dict[str, str]]] = {
    "after a transpose": (net(lambda m, x: m.two(m.drop(x).transpose(0, 1))), {"two": "input"}),
    "times a gate": (net(lambda m, x: m.two(m.drop(m.one(x)) * torch.sigmoid(x))), {"one": "hidden"}),
    "residual": (net(lambda m, x: m.two(x + m.drop(m.one(x)))), {"one": "output"}),
    "a layer that is not torch's": (net(lambda m, x: x + m.drop(m.one(x)), one=Transposed()), {"one": "output"}),
    "residual in place": (net(in_place), {"one": "output"}),
    "norm": (net(lambda m, x: m.norm(m.drop(m.one(x))), norm=nn.LayerNorm(6)), {"one": "output"}),
    "changed forward": (net(lambda m, x: m.two(m.drop(m.one(x))), two=Doubling(6, 6)), {"one": "rank"}),
    "taker used without it": (net(lambda m, x: m.two(m.drop(m.one(x))) + m.two(x)), {"one": "output"}),
    "reused, of two sizes": (
        net(chain, two=nn.Linear(6, 8), three=nn.Linear(8, 2)),
        {"one": "hidden", "two": "hidden"},
    ),
    "twice the same layer": (net(lambda m, x: m.two(m.drop(m.two(m.drop(x))))), {"two": "input"}),
    "in place": (
        net(lambda m, x: m.two(m.drop(F.gelu(m.one(x)).mul_(2))), drop=nn.Dropout(0.5, inplace=True)),
        {"one": "hidden"},
    ),
    "attention made it": (net(lambda m, x: x + m.drop(m.mha(x, x, x)[0]), mha=attention()), {"mha.out_proj": "output"}),
    "convolution": (
        net(lambda m, x: m.conv(m.drop(x.mT)), drop=nn.Dropout1d(), conv=nn.Conv1d(6, 2, 1)),
        {"conv": "input"},
    ),
    "a mask elsewhere": (
        net(lambda m, x: m.two(m.drop(m.one(x))), one=mrreg.MultirateMask(linear())),
        {"two": "input"},
    ),
    "batch norm after it": (
        net(lambda m, x: x + m.drop(m.norm(m.one(x).mT).mT), norm=nn.BatchNorm1d(6)),
        {"norm": "output"},
    ),
    "the features of a convolution": (
        net(lambda m, x: m.end(m.drop(F.relu(m.conv(x)).flatten(1))), conv=nn.Conv1d(3, 4, 3), end=nn.Linear(16, 2)),
        {"end": "input"},
    ),
    "channels of what no layer made": (
        net(lambda m, x: m.end(m.drop(x.exp()).flatten(1)), drop=nn.Dropout1d(0.4), end=nn.Linear(18, 2)),
        {"end": "input"},
    ),
    "as many places as features": (net(lambda m, x: m.two(m.drop(x[:, [0, 1, 2] * 2].exp()))), {"two": "input"}),
    "recurrent reads it": (net(lambda m, x: m.rnn(m.drop(x.exp()))[0], rnn=nn.LSTM(6, 3, 2)), {"rnn": "input"}),
    "before a packed sequence": (
        net(
            lambda m, x: m.rnn(pack_padded_sequence(m.two(m.drop(x)), torch.tensor([3, 2]), batch_first=True))[0].data,
            rnn=nn.GRU(6, 3),
        ),
        {"two": "input"},
    ),
}


@pytest.mark.parametrize(("model", "masks"), MASKED.values(), ids=MASKED.keys())
def test_what_stands_for_a_dropout(model: nn.Module, masks: dict[str, str]) -> None:
    model, report = mrreg.swap_dropout(copy.deepcopy(model), k=3, example_inputs=torch.randn(2, 3, 6))
    assert report["drop"].masks == masks
    assert report["drop"].what.startswith(("Dropout(p=0.", "Dropout1d(p=0."))
    assert type(model.get_submodule("drop")) is nn.Identity
    assert report.thin is not None
    assert {group.kind.removesuffix("s") for group in report.thin.groups} == {
        kind.removesuffix("s") for kind in masks.values()
    }
    assert mask_of(model).k == 3


LEFT: dict[str, tuple[nn.Module, str]] = {
    "between a norm and a sum": (net(lambda m, x: x + m.drop(F.layer_norm(x, (6,)))), "no layer reads or makes"),
    "after softmax": (
        net(lambda m, x: m.drop(x.matmul(x.mT).softmax(-1)) @ x),
        "attention probabilities, which have no weight",
    ),
    "not zero at zero": (net(lambda m, x: x + m.drop(torch.sigmoid(m.one(x)))), "would do something else"),
    "query only": (
        net(lambda m, x: m.mha(m.drop(x), x, x), mha=attention()),
        r"inputs of mha \(input\), the others rescaled, would do",
    ),
    "bilinear made it": (
        net(lambda m, x: m.drop(m.bi(x, x)) + x, bi=nn.Bilinear(6, 6, 6)),
        r'masked by hand, before this: mrreg.mask\(model, \{layer: p\}, structure="input"\), or "output"',
    ),
    "not called": (net(lambda m, x: m.two(m.one(x))), "the forward on example_inputs does not call it"),
    "p of no unit": (net(lambda m, x: m.two(m.drop(x)), drop=nn.Dropout(0.05)), "p = 0.05 of 6 units is none"),
    "alpha dropout": (net(lambda m, x: m.two(m.drop(x)), drop=nn.AlphaDropout()), "a value other than zero"),
    "not torch's own": (net(lambda m, x: m.two(m.drop(x)), drop=Halving()), "its class computes something else"),
    "whole tokens": (net(lambda m, x: m.two(m.drop(x.exp())), drop=nn.Dropout1d()), "no layer reads or makes"),
    "tied": (tied(), "would do something else"),
    "no gradient": (net(torch.no_grad()(lambda m, x: m.two(m.drop(x)))), "no layer reads or makes"),
    "masked": (
        net(lambda m, x: m.two(m.drop(x)), two=mrreg.MultirateMask(linear())),
        "'two' has a MultirateMask of its own",
    ),
    "frozen": (net(lambda m, x: m.two(m.drop(x)), two=linear().requires_grad_(False)), "'two.weight' is frozen"),
}


@pytest.mark.parametrize(("model", "reason"), LEFT.values(), ids=LEFT.keys())
def test_what_is_left_and_why(model: nn.Module, reason: str) -> None:
    before = copy.deepcopy(model)
    with pytest.warns(mrreg.NoEffectWarning, match="swap_dropout: no mask was put anywhere"):
        same, report = mrreg.swap_dropout(model, example_inputs=torch.randn(2, 3, 6))
    assert same is model
    assert repr(model) == repr(before)
    assert not report["drop"].replaced
    assert re.search(reason, report["drop"].reason), report["drop"].reason
    assert report.thin is None


def test_one_dropout_in_two_places_is_replaced_in_both_or_left() -> None:
    drop = nn.Dropout()
    model: Any = nn.Sequential(linear(), drop, linear(), nn.Sigmoid(), drop, linear())
    model, report = mrreg.swap_dropout(model, 3, torch.randn(2, 6))
    assert report["1"].masks == {"0": "rank", "2": "hidden"}
    assert [type(model[i]) for i in (1, 4)] == [nn.Identity, nn.Identity]
    with pytest.warns(mrreg.NoEffectWarning):
        _, report = mrreg.swap_dropout(net(lambda m, x: m.two(m.drop(F.softplus(x))) + m.drop(x)), 3, torch.randn(2, 6))
    assert report["drop"].reason == "zeros in inputs of two (input), the others rescaled, would do something else"


def test_dropout_inside_recurrent_layers_says_what_to_do() -> None:
    model = nn.Sequential(nn.LSTM(6, 6, num_layers=3, dropout=0.5, bidirectional=True))
    with pytest.warns(mrreg.NoEffectWarning):
        _, report = mrreg.swap_dropout(model, example_inputs=torch.randn(2, 6))
    call = 'mrreg.mask(model, {"0": 0.5}, structure="input", parameters=["weight_ih_l[!0]*"])'
    assert report["0.dropout"].reason == f"it is inside the layer; before this, by hand: {call}"
    eval(call, {"mrreg": mrreg, "model": model})
    assert {target.name for target in of(model[0]).targets} == {
        f"weight_ih_l{layer}{end}" for layer in (1, 2) for end in ("", "_reverse")
    }


def test_dropout_in_functions_is_listed() -> None:
    inner = Net(lambda m, x: F.dropout(x, 0.3, m.training) + F.dropout(x, 0.0) + F.dropout(x, training=False))
    attends = Net(lambda m, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 * m.training))
    model = net(lambda m, x: m.two(m.drop(m.attends(m.inner(x)))), inner=inner, attends=attends)
    _, report = mrreg.swap_dropout(model, example_inputs=torch.randn(2, 3, 6))
    functional = {path: (swap.what, swap.reason) for path, swap in report.items() if path != "drop"}
    assert functional == {
        "inner: dropout()": (
            "dropout() with p=0.3",
            "only modules can be replaced: make it an nn.Dropout, or set its p to 0 and use mrreg.thin",
        ),
        "attends: scaled_dot_product_attention()": (
            "scaled_dot_product_attention() with p=0.1",
            "it acts on attention probabilities, which have no weight",
        ),
    }


class DropPath(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(()) > self.drop_prob) if self.training else x


def test_drop_path_says_which_blocks_to_write() -> None:
    block = net(lambda m, x: x + m.path(m.two(m.drop(torch.tanh(m.one(x))))), path=DropPath(0.25))
    model = nn.Sequential(*(copy.deepcopy(block) for _ in range(4)), linear())
    plain = copy.deepcopy(model)
    _, report = mrreg.swap_dropout(model, 3, torch.randn(2, 6))
    assert report["2.drop"].masks == {"2.one": "hidden"}
    assert report["2.path"].what == "DropPath(p=0.25)"
    call = 'mrreg.thin(model, p={"blocks": {"2": 0.25}}, ...)'
    assert report["2.path"].reason == f"it drops a whole branch; {call} has the block around it off for a cycle"
    _, thin = mrreg.thin(plain, {"blocks": {"[0-3]": 0.25}}, 3, torch.randn(2, 6))
    assert (thin["blocks"].units, thin["blocks"].kept) == (4, 3)


def test_report_reads_line_by_line() -> None:
    layers = [linear(), nn.ReLU(), nn.Dropout(0.5), linear(), nn.LayerNorm(6), nn.Dropout(0.1), nn.Softmax(-1)]
    _, report = mrreg.swap_dropout(nn.Sequential(*layers), example_inputs=torch.randn(2, 6))
    assert report.thin is not None
    assert str(report).splitlines() == [
        "1 of 2 dropouts replaced by masks",
        "  2  Dropout(p=0.5) -> hidden mask on 0",
        f"  5  Dropout(p=0.1) -> left: {NOBODY}",
        "Masks are held for a cycle: code that needs fresh noise at every forward (Monte Carlo dropout) gets none.",
        *report.thin.summary().splitlines(),
    ]


def test_nothing_to_do_warns_at_the_users_line() -> None:
    with pytest.warns(mrreg.NoEffectWarning, match="the model has no dropout") as caught:
        mrreg.swap_dropout(linear(), example_inputs=torch.randn(2, 6))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"example_inputs": None}, ValueError, "swap_dropout: example_inputs must be what one training forward takes"),
        ({"k": 0}, ValueError, "k must be"),
        ({"boost": float("nan")}, ValueError, "boost must be"),
        ({"rescale": 1}, TypeError, "rescale must be"),
        ({"example_inputs": (torch.ones(2),) * 3}, ValueError, r"swap_dropout: .*Tensor\(2,\), .*positional arguments"),
        ({"example_inputs": torch.ones(2, 5)}, ValueError, "the forward failed .*shapes"),
    ],
)
def test_bad_arguments_change_nothing(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    model = nn.Sequential(linear(), nn.Dropout(), linear())
    with pytest.raises(kind, match=message):
        mrreg.swap_dropout(**{"model": model, "example_inputs": torch.randn(2, 6), **arguments})
    assert isinstance(model[1], nn.Dropout)


def test_a_forward_that_only_runs_in_single_precision_is_followed_in_it() -> None:
    def single(m: Any, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("no doubles")
        return m.two(m.drop(torch.tanh(m.one(x))))  # type: ignore[no-any-return]

    _, report = mrreg.swap_dropout(net(single), example_inputs=torch.randn(2, 6))
    assert report["drop"].masks == {"one": "hidden"}
