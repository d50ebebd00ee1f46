"""Which mask stands for a dropout in all kinds of forwards, what is left and why; following leaves no trace."""

import copy
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.masks import of
from helpers.notes import note_of
from helpers.thin import mask_of
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence

import mrreg


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


class Noise(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return input + torch.randn_like(input)


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


def unread(m: Any, x: Tensor) -> Tensor:
    packed = pack_padded_sequence(m.drop(x), torch.tensor([3, 2]), batch_first=True)
    return m.rnn(packed)[0].data  # type: ignore[no-any-return]


def in_place(m: Any, x: Tensor) -> Tensor:
    y = m.one(x)
    y = m.drop(y)
    y += x
    return y  # type: ignore[no-any-return]


def written_to(m: Any, x: Tensor) -> Tensor:
    y = m.drop(F.softplus(m.one(x)))
    y[0] = 1
    return m.two(y)  # type: ignore[no-any-return]


def mixed(m: Any, x: Tensor) -> Tensor:
    return x + m.drop(m.two(m.drop(F.relu(m.one(x)))))  # type: ignore[no-any-return]


MASKED: dict[str, tuple[nn.Module, dict[str, str]]] = {
    "attributes": (net(lambda m, x: m.two(m.drop(F.relu(m.one(x))))), {"one": "hidden"}),
    "after a view": (net(lambda m, x: m.two(m.drop(m.one(x)).view(-1, 6).contiguous())), {"two": "input"}),
    "after a transpose": (net(lambda m, x: m.two(m.drop(x).transpose(0, 1))), {"two": "input"}),
    "one token": (net(lambda m, x: m.two(m.drop(m.one(x))[:, 0])), {"one": "hidden"}),
    "times a gate": (net(lambda m, x: m.two(m.drop(m.one(x)) * torch.sigmoid(x))), {"two": "input"}),
    "activation after": (net(lambda m, x: m.two(F.gelu(m.drop(m.one(x))))), {"one": "hidden"}),
    "product": (net(lambda m, x: x + m.drop(torch.sigmoid(m.two(x)) * m.one(x))), {"one": "output"}),
    "two heads": (net(lambda m, x: (m.one(y := m.drop(x)), m.two(y))), {"one": "input", "two": "input"}),
    "residual": (net(lambda m, x: m.two(x + m.drop(m.one(x)))), {"one": "output"}),
    "residual in place": (net(in_place), {"one": "output"}),
    "residual, activation": (net(lambda m, x: x + m.drop(torch.tanh(m.one(x)).squeeze())), {"one": "output"}),
    "norm": (net(lambda m, x: m.norm(m.drop(m.one(x))), norm=nn.LayerNorm(6)), {"one": "output"}),
    "concatenated": (net(lambda m, x: m.two(torch.cat([m.drop(m.one(x)), x]))), {"one": "output"}),
    "model's output": (net(lambda m, x: {"logits": m.drop(m.one(x))}), {"one": "output"}),
    "taken by nobody": (net(lambda m, x: (m.drop(m.one(x)), m.two(x))[1]), {"one": "output"}),
    "weight used as a tensor": (net(lambda m, x: F.linear(m.drop(m.one(x)), m.two.weight)), {"one": "output"}),
    "changed forward": (net(lambda m, x: m.two(m.drop(m.one(x))), two=Doubling(6, 6)), {"one": "output"}),
    "taker used without it": (net(lambda m, x: m.two(m.drop(m.one(x))) + m.two(x)), {"one": "output"}),
    "reused": (net(mixed), {"two": "output", "one": "output"}),
    "twice the same layer": (net(lambda m, x: m.two(m.drop(m.two(m.drop(x))))), {"two": "input"}),
    "in place": (
        net(lambda m, x: m.two(m.drop(F.gelu(m.one(x)).mul_(2))), drop=nn.Dropout(0.5, inplace=True)),
        {"one": "hidden"},
    ),
    "dropout after dropout": (net(lambda m, x: m.two(m.off(m.drop(x))), off=nn.Dropout(0.0)), {"two": "input"}),
    "attention": (net(lambda m, x: m.mha(y := m.drop(x), y, y), mha=attention()), {"mha": "input"}),
    "attention, keywords": (
        net(lambda m, x: m.mha(key=(y := m.drop(x)), query=y, value=y), mha=attention()),
        {"mha": "input"},
    ),
    "attention made it": (net(lambda m, x: x + m.drop(m.mha(x, x, x)[0]), mha=attention()), {"mha": "output"}),
    "packed": (net(unread, rnn=nn.GRU(6, 3)), {"rnn": "input"}),
    "cell": (net(lambda m, x: m.cell(m.drop(x[0])), cell=nn.LSTMCell(6, 3)), {"cell": "input"}),
    "embedding": (net(lambda m, x: x + m.drop(m.emb(torch.tensor(1))), emb=nn.Embedding(3, 6)), {"emb": "output"}),
    "bilinear": (net(lambda m, x: m.drop(m.bi(x, x)) + x, bi=nn.Bilinear(6, 6, 6)), {"bi": "output"}),
    "convolution": (
        net(lambda m, x: m.conv(m.drop(x.mT)), drop=nn.Dropout1d(), conv=nn.Conv1d(6, 2, 1)),
        {"conv": "input"},
    ),
    "transposed": (net(lambda m, x: m.conv(m.drop(x.mT)), conv=nn.ConvTranspose1d(6, 2, 1)), {"conv": "input"}),
    "no gradient": (net(torch.no_grad()(lambda m, x: m.two(m.drop(x)))), {"two": "input"}),
    "a mask elsewhere": (
        net(lambda m, x: m.two(m.drop(m.one(x))), one=mrreg.MultirateMask(linear())),
        {"two": "input"},
    ),
}


@pytest.mark.parametrize(("model", "masks"), MASKED.values(), ids=MASKED.keys())
def test_follows_what_a_forward_does(model: nn.Module, masks: dict[str, str]) -> None:
    model, report = mrreg.swap_dropout(copy.deepcopy(model), k=3, example_inputs=torch.randn(2, 3, 6))
    assert report["drop"].masks == masks
    assert report["drop"].what.startswith(("Dropout(p=0.5)", "Dropout1d(p=0.5)"))
    for path, structure in masks.items():
        mask = model.get_submodule(path)
        if structure == "hidden":
            assert report.thin is not None
            assert (report.thin[path].kind, report.thin[path].kept, mask_of(model).k) == ("hidden", 3, 3)
            continue
        assert isinstance(mask, mrreg.MultirateMask)
        assert (mask.p, mask.k, mask.structure) == (0.5, 3, structure)
    assert type(model.get_submodule("drop")) is nn.Identity
    assert report.obstacle == ""


LEFT: dict[str, tuple[nn.Module, str]] = {
    "between a norm and a sum": (
        net(lambda m, x: x + m.drop(F.layer_norm(x, (6,)))),
        "goes to add; .* comes from layer_norm",
    ),
    "after softmax": (
        net(lambda m, x: m.drop(x.matmul(x.mT).softmax(-1)) @ x),
        "attention probabilities, which have no weight",
    ),
    "maker used elsewhere": (net(lambda m, x: (y := m.one(x)) + m.drop(y)), "'one', which others take too"),
    "not zero at zero": (net(lambda m, x: x + m.drop(torch.sigmoid(m.one(x)))), "comes from sigmoid"),
    "two makers": (net(lambda m, x: x + m.drop(m.one(x) + m.two(x))), "comes from add"),
    "model's input": (net(lambda m, x: x + m.drop(x)), "goes to add; .* comes from the model's input"),
    "maker used without it": (
        net(lambda m, x: m.drop(m.one(x)) + m.one(x)),
        "'one', which is used without this dropout too",
    ),
    "query only": (net(lambda m, x: m.mha(m.drop(x), x, x), mha=attention()), "'mha', which takes other values too"),
    "bilinear": (net(lambda m, x: m.bi(m.drop(x), x), bi=nn.Bilinear(6, 6, 6)), "'bi', which cannot be masked"),
    "recurrent made it": (
        net(lambda m, x: x + m.drop(m.rnn(x)[0]), rnn=nn.GRU(6, 6)),
        "goes to add; .* comes from 'rnn'",
    ),
    "overwritten": (net(written_to), "goes to __setitem__; .* comes from softplus"),
    "made by a function in a part": (
        net(lambda m, x: x + m.drop(m.part(x)), part=Net(lambda m, x: F.softplus(x))),
        "comes from softplus in 'part'",
    ),
    "not called": (net(lambda m, x: m.two(m.one(x))), "this forward did not call it"),
    "p of no unit": (
        net(lambda m, x: m.two(m.drop(x)), drop=nn.Dropout(0.05)),
        "'two', which has so few units that p = 0.05 rounds to none of them",
    ),
    "p is 0": (net(lambda m, x: m.two(m.drop(x)), drop=nn.Dropout(0.0)), "p is 0"),
    "alpha dropout": (net(lambda m, x: m.two(m.drop(x)), drop=nn.AlphaDropout()), "a value other than zero"),
    "changed dropout": (net(lambda m, x: m.two(m.drop(x)), drop=Noise()), "something else than torch's dropout"),
    "tied": (tied(), "which shares its weight with 'one'"),
    "parametrized": (
        net(lambda m, x: m.two(m.drop(x)), two=parametrizations.weight_norm(linear())),
        "'two', which cannot be masked",
    ),
    "parametrized maker": (
        net(lambda m, x: x + m.drop(m.one(x)), one=parametrizations.weight_norm(linear())),
        "goes to add; .* comes from 'one', which cannot be masked",
    ),
    "sparse": (
        net(lambda m, x: x + m.drop(m.emb(torch.tensor(1))), emb=nn.Embedding(3, 6, sparse=True)),
        "sparse=True",
    ),
    "masked": (
        net(lambda m, x: m.two(m.drop(x)), two=mrreg.MultirateMask(linear())),
        "'two', which is masked already",
    ),
}


@pytest.mark.parametrize(("model", "reason"), LEFT.values(), ids=LEFT.keys())
def test_leaves_what_has_no_layer_to_mask(model: nn.Module, reason: str) -> None:
    before = copy.deepcopy(model)
    with pytest.warns(mrreg.NoEffectWarning, match="swap_dropout: no mask was put anywhere"):
        same, report = mrreg.swap_dropout(model, example_inputs=torch.randn(2, 3, 6))
    assert same is model
    assert repr(model) == repr(before)
    assert not report["drop"].replaced
    assert re.search(reason, report["drop"].reason), report["drop"].reason


SEQUENTIAL: dict[str, tuple[nn.Module, dict[str, dict[str, str]]]] = {
    "pair": (
        nn.Sequential(nn.Sequential(linear(), nn.SiLU(), nn.Dropout(), linear())),
        {"0.2": {"0": "hidden"}},
    ),
    "pair that is the whole model": (nn.Sequential(linear(), nn.SiLU(), nn.Dropout(), linear()), {"2": {"3": "input"}}),
    "pair in a longer one": (
        nn.Sequential(linear(), nn.ReLU(), nn.Dropout(), linear(), nn.ReLU()),
        {"2": {"3": "input"}},
    ),
    "pair inside": (
        nn.Sequential(nn.Flatten(), nn.Sequential(linear(), nn.ReLU(), nn.Dropout(), linear()), nn.ReLU()),
        {"1.2": {"1": "hidden"}},
    ),
    "pair across two": (
        nn.Sequential(nn.Sequential(linear(), nn.ReLU(), nn.Dropout()), nn.Sequential(linear(), nn.Tanh())),
        {"0.2": {"1.0": "input"}},
    ),
    "pair with a second dropout": (
        nn.Sequential(linear(), nn.ReLU(), nn.Dropout(), linear(), nn.Dropout()),
        {"2": {"0": "output"}, "4": {"3": "output"}},
    ),
    "chain": (
        nn.Sequential(*(layer() for _ in range(3) for layer in (linear, nn.ReLU, nn.Dropout))),
        {"2": {"0": "output"}, "5": {"3": "output"}, "8": {"6": "output"}},
    ),
    "sigmoid between": (nn.Sequential(linear(), nn.Sigmoid(), nn.Dropout(), linear()), {"2": {"3": "input"}}),
    "two dropouts": (
        nn.Sequential(linear(), nn.ReLU(), nn.Dropout(0.1), nn.Dropout(0.2), linear()),
        {"2": {"4": "input"}, "3": {"0": "output"}},
    ),
    "in a module that nobody knows": (
        Net(lambda m, x: x, block=nn.Sequential(linear(), nn.ReLU(), nn.Dropout())),
        {"block.2": {"block.0": "output"}},
    ),
    "feed-forward of a Transformer layer alone": (
        nn.Sequential(nn.TransformerEncoderLayer(6, 2, 12)),
        {"0.dropout": {"0": "hidden"}},
    ),
    "activation that is not zero at zero": (
        nn.Sequential(nn.TransformerEncoderLayer(6, 2, 12, activation=F.softplus)),
        {"0.dropout": {"0.linear2": "input"}},
    ),
    "recurrent": (nn.Sequential(nn.RNN(6, 6, num_layers=2, dropout=0.5)), {"0.dropout": {"0": "input"}}),
    "recurrent, p of its own": (
        nn.Sequential(nn.Dropout(0.1), nn.LSTM(6, 6, num_layers=2, dropout=0.5)),
        {"0": {"1": "input"}},
    ),
}
for name in ("feed-forward of a Transformer layer alone", "activation that is not zero at zero"):
    for dropout in ("dropout1", "dropout2"):
        SEQUENTIAL[name][0].get_submodule(f"0.{dropout}").p = 0.0  # type: ignore[assignment]


@pytest.mark.parametrize(("model", "masks"), SEQUENTIAL.values(), ids=SEQUENTIAL.keys())
def test_reads_the_order_off_modules_that_are_known(model: nn.Module, masks: dict[str, dict[str, str]]) -> None:
    model, report = mrreg.swap_dropout(copy.deepcopy(model))
    assert {path: swap.masks for path, swap in report.items() if swap.replaced} == masks
    for layers in masks.values():
        for path, structure in layers.items():
            mask = model.get_submodule(path)
            assert isinstance(mask, mrreg.MultirateMask)
            assert mask.structure == structure


def test_following_replaces_what_reading_does() -> None:
    for name, (model, _) in SEQUENTIAL.items():
        if not isinstance(model, Net) and name != "two dropouts":  # of one group, which has one p
            reports = [mrreg.swap_dropout(copy.deepcopy(model), example_inputs=x)[1] for x in (None, torch.randn(2, 6))]
            read, followed = ({path for path, swap in report.items() if swap.replaced} for report in reports)
            assert followed == read, name


def test_one_dropout_under_two_names_is_replaced_in_both_places() -> None:
    drop = nn.Dropout()
    model = nn.Sequential(linear(), drop, linear(), nn.Sigmoid(), drop, linear())
    _, report = mrreg.swap_dropout(model)
    assert report["1"].masks == {"2": "input", "5": "input"}
    assert [type(model[i]) for i in (1, 4)] == [nn.Identity, nn.Identity]


def test_recurrent_dropout_becomes_masks_of_later_layers() -> None:
    rnn = nn.LSTM(6, 6, num_layers=3, dropout=0.5, bidirectional=True)
    model, _ = mrreg.swap_dropout(nn.Sequential(nn.Dropout(0.5), rnn))
    mask = model.get_submodule("1")
    assert isinstance(mask, mrreg.MultirateMask)
    assert mask is rnn
    assert rnn.dropout == 0
    names = {f"weight_ih_l{layer}{end}" for layer in range(3) for end in ("", "_reverse")}
    assert {target.name for target in of(mask).targets} == names


def test_one_layer_drops_nothing() -> None:
    rnn = nn.GRU(6, 6, num_layers=2, dropout=0.5)
    rnn.num_layers = 1
    for name in [name for name in rnn._parameters if name.endswith("_l1")]:
        del rnn._parameters[name]
    with pytest.warns(mrreg.NoEffectWarning, match="has one layer"):
        mrreg.swap_dropout(rnn)


def test_functional_dropout_is_reported_with_its_place() -> None:
    inner = Net(lambda m, x: F.dropout(x, 0.5, m.training) + F.dropout(x, 0.0))
    model = net(lambda m, x: m.two(m.drop(m.inner(x))), inner=inner)
    _, report = mrreg.swap_dropout(model, example_inputs=torch.randn(2, 6))
    assert list(report) == ["drop", "inner: dropout()"]
    assert report["inner: dropout()"].what.startswith("dropout() with p=0.5 at test_dropout.py:")
    assert report["inner: dropout()"].reason == "its output goes to add; its input comes from the model's input"
    assert not report["inner: dropout()"].replaced


def test_attention_written_out_is_known_wherever_it_is() -> None:
    inner = net(lambda m, x: m.drop(x.matmul(x.mT).softmax(-1)) @ x)
    with pytest.warns(mrreg.NoEffectWarning):
        _, report = mrreg.swap_dropout(nn.Sequential(inner), example_inputs=torch.randn(2, 6))
    assert report["0.drop"].reason == "it acts on attention probabilities, which have no weight"


def test_report_reads_line_by_line() -> None:
    layers = [linear(), nn.ReLU(), nn.Dropout(0.2), linear(), nn.LayerNorm(6), nn.Dropout(0.1), nn.Softmax(-1)]
    _, report = mrreg.swap_dropout(nn.Sequential(*layers))
    assert str(report).splitlines() == [
        "1 of 2 dropouts replaced by masks",
        "  2  Dropout(p=0.2) -> input mask on 3: its output goes there",
        "  5  Dropout(p=0.1) -> left: its output goes to Softmax; its input comes from LayerNorm",
        "Masks are held for a cycle: code that needs fresh noise at every forward (Monte Carlo dropout, two different "
        "passes of one batch) gets none from them.",
    ]


def test_nothing_to_do_warns_and_says_how_to_see_more() -> None:
    model = net(lambda m, x: m.two(m.drop(m.one(x))))
    with pytest.warns(mrreg.NoEffectWarning, match="pass example_inputs") as caught:
        assert mrreg.swap_dropout(model)[0] is model
    assert caught[0].filename == __file__
    with pytest.warns(mrreg.NoEffectWarning, match="0 of 0 dropouts"):
        mrreg.swap_dropout(linear())


def test_a_second_call_finds_nothing() -> None:
    inputs = torch.randn(2, 3, 6)
    model, _ = mrreg.swap_dropout(nn.TransformerEncoderLayer(6, 2, 12))
    before = repr(model)
    with pytest.warns(mrreg.NoEffectWarning, match="0 of 1 dropouts"):
        mrreg.swap_dropout(model, example_inputs=inputs)
    assert repr(model) == before
    model, _ = mrreg.swap_dropout(nn.TransformerEncoderLayer(6, 2, 12), example_inputs=inputs)
    with pytest.raises(RuntimeError, match="thin already"):
        mrreg.swap_dropout(model, example_inputs=inputs)


def test_options_reach_the_masks() -> None:
    model, _ = mrreg.swap_dropout(nn.Sequential(nn.Dropout(0.3), linear()), 7, rescale=True, boost=2)
    mask = model.get_submodule("1")
    assert isinstance(mask, mrreg.MultirateMask)
    assert (mask.p, mask.k, mask.rescale, mask.boost) == (0.3, 7, True, 2)


def test_modes_stay_as_they_were() -> None:
    model = nn.Sequential(linear().eval(), nn.Dropout().eval(), linear(), nn.Dropout(), linear())
    mrreg.swap_dropout(model, example_inputs=torch.randn(2, 6))
    assert [module.training for module in model] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"model": "net"}, TypeError, "swap_dropout: model must be a torch.nn.Module, not a scripted one, got 'net'"),
        ({"k": 0}, ValueError, "k must be"),
        ({"k": True}, TypeError, "k must be"),
        ({"boost": float("nan")}, ValueError, "boost must be"),
        ({"rescale": 1}, TypeError, "rescale must be"),
        ({"example_inputs": (torch.ones(2), torch.ones(2), torch.ones(2))}, TypeError, "positional arguments"),
    ],
)
def test_bad_arguments_change_nothing(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    model = nn.Sequential(linear(), nn.Dropout(), linear())
    with pytest.raises(kind, match=message):
        mrreg.swap_dropout(**{"model": model, **arguments})
    assert isinstance(model[1], nn.Dropout)


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_a_scripted_part_is_passed_over() -> None:
    scripted = torch.jit.trace(linear(), torch.ones(2, 6))  # type: ignore[no-untyped-call]
    _, report = mrreg.swap_dropout(nn.Sequential(scripted, nn.Dropout(), linear()), example_inputs=torch.ones(2, 6))
    assert report["1"].masks == {"2": "input"}


def test_an_error_of_the_forward_says_where_it_came_up() -> None:
    with pytest.raises(RuntimeError, match="shapes") as caught:
        mrreg.swap_dropout(nn.Sequential(nn.Dropout(), linear()), example_inputs=torch.ones(2, 5))
    assert "swap_dropout: raised by the model's forward on example_inputs" in note_of(caught.value)


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = net(lambda m, x: m.two(m.drop(x)))
    model.lock = (_ for _ in ())  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match=r"swap_dropout: the model cannot be copied .* leave out example_inputs"):
        mrreg.swap_dropout(model, example_inputs=torch.ones(2, 6))
    assert isinstance(model.drop, nn.Dropout)


class Sloppy(nn.Module):
    """Everything that a forward may leave behind."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.drop, self.two = linear(), nn.BatchNorm1d(6), nn.Dropout(), linear()
        self.register_buffer("steps", torch.zeros(()))
        self.calls, self.seen, self.last = 0, [torch.ones(1)], torch.ones(1)

    def forward(self, x: Tensor, scale: float = 1) -> Tensor:
        self.calls += 1
        self.steps = self.steps + 1
        self.seen.append(x)
        x.mul_(2)
        self.last = self.one(x) * (random.random() + np.random.rand() + torch.rand(()))  # noqa: NPY002
        return self.two(self.drop(self.norm(self.last))) * scale  # type: ignore[no-any-return]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("keywords", [True, False])
def test_following_a_forward_leaves_nothing_behind(training: bool, keywords: bool) -> None:
    model = Sloppy().train(training)
    model(torch.randn(3, 6)).sum().backward()  # caches activations with a history
    model.one.weight.requires_grad_(False)
    heard: list[int] = []
    model.one.register_forward_hook(lambda *_: heard.append(1))
    hooks, state = dict(model.one._forward_hooks), copy.deepcopy(model.state_dict())
    parameters, grads = dict(model.named_parameters()), {n: p.grad for n, p in model.named_parameters()}
    old = model.calls, len(model.seen), model.last
    x = torch.randn(1, 6, requires_grad=True)
    inputs = x * 1
    before = inputs.clone()
    generators = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    mrreg.swap_dropout(model, example_inputs={"x": inputs} if keywords else (inputs, 2.0))
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert str(np.random.get_state()) == generators[2]  # noqa: NPY002
    assert (model.calls, len(model.seen), model.last) == old
    assert heard == []
    assert dict(model.one._forward_hooks) == hooks
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    plain = dict(mrreg.unwrap(model).named_parameters())
    assert all(plain[name] is p and p.grad is grads[name] for name, p in parameters.items())
    assert not model.one.weight.requires_grad
    assert torch.equal(inputs, before)
    assert model.training == model.norm.training == training


@pytest.mark.parametrize("inputs", [None, torch.randn(2, 6)])
def test_masks_that_are_never_on_are_reported(inputs: Tensor | None) -> None:
    with pytest.warns(mrreg.NoEffectWarning, match=r"swap_dropout: with k=1 .* the dropouts are gone"):
        mrreg.swap_dropout(nn.Sequential(linear(), nn.ReLU(), nn.Dropout(), linear()), 1, inputs)
