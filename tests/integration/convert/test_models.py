"""swap_dropout on whole models: what is replaced, and that training equals the loop with the same units dropped."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.architectures import Case, double
from helpers.thin import TOLERANCE, mask_of
from helpers.thin_oracle import LiteralTraining, Make, call, kept_units, loss_of
from helpers.transformer_models import bert
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import mrreg
from mrreg.thinning.paths import NoDropout

Build = Callable[[], tuple[nn.Module, Any]]  # a model and its example inputs
OPTIMIZERS: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.001, momentum=0.9, weight_decay=0.01),
    "AdamW": partial(AdamW, lr=0.0001, eps=0.01, weight_decay=0.1),
}


class Tagger(nn.Module):
    """Embedding, dropout, LSTM with dropout between its layers, the same dropout, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.out = nn.Embedding(20, 8), nn.Dropout(0.25), nn.Linear(32, 5)
        self.rnn = nn.LSTM(8, 16, num_layers=3, dropout=0.25, bidirectional=True, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.rnn(self.drop(self.embed(tokens)))
        return self.out(self.drop(states))  # type: ignore[no-any-return]


class Language(nn.Module):
    """A decoder as in many tutorials: one dropout everywhere, added embeddings, numbers in shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.drop = nn.Embedding(20, 8), nn.Embedding(5, 8), nn.Dropout(0.25)
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down, self.head = nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 20)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        b, t = tokens.shape
        x = self.drop(self.words(tokens) + self.places(torch.arange(t)))
        q, k, v = (z.view(b, t, 2, 4).transpose(1, 2) for z in self.qkv(self.norms[0](x)).split(8, -1))
        scores = (q @ k.mT / 2).masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        x = x + self.drop(self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, 8)))
        x = x + self.drop(self.down(nn.functional.gelu(self.up(self.norms[1](x)))))
        return self.head(self.norms[2](x))  # type: ignore[no-any-return]


def mlp() -> tuple[nn.Module, Any]:
    layers = [
        nn.Dropout(0.25),
        nn.Linear(8, 16),
        nn.Sigmoid(),
        nn.Dropout(0.5),
        nn.Linear(16, 12),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(*layers, nn.Dropout(0.25, inplace=True), nn.Linear(12, 3)), torch.randn(5, 8)


def convolutions() -> tuple[nn.Module, Any]:
    body = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.5), nn.Conv2d(16, 8, 3)]
    head = [nn.ReLU(), nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(8 * 4, 16), nn.ReLU()]
    return nn.Sequential(*body, *head, nn.Dropout(0.25), nn.Linear(16, 4)), torch.randn(4, 3, 6, 6)


def encoder(**options: Any) -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.25, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(3, 4, 8)


LAYER = {
    "dropout1": ("self_attn.out_proj", "output"),
    "dropout": ("linear1", "hidden"),
    "dropout2": ("linear2", "output"),
}
ENCODER = {
    f"layers.{i}.{drop}": {f"layers.{i}.{layer}": kind} for i in range(2) for drop, (layer, kind) in LAYER.items()
}
CASES: dict[str, tuple[Build, dict[str, dict[str, str]]]] = {
    "MLP": (mlp, {"0": {"1": "input"}, "3": {"1": "hidden"}, "6": {"4": "hidden"}}),
    "convolutions": (
        convolutions,
        {"3": {"0": "channels"}, "6": {"4": "channels"}, "10": {"8": "hidden"}},
    ),
    "tagger": (lambda: (Tagger(), torch.randint(20, (4, 7))), {"drop": {"embed": "hidden", "out": "input"}}),
    "language model": (
        lambda: (Language(), torch.randint(20, (4, 5))),
        {"drop": dict.fromkeys(["words", "places", "proj", "down"], "output")},
    ),
    "encoder": (partial(encoder, norm_first=True), ENCODER),
}


def doubled(build: Build) -> Case:
    """A float64 model without dropout on attention probabilities or between recurrent layers, and its inputs."""
    torch.manual_seed(0)
    return double(Case(*build()))


def dropping(model: nn.Module, report: Any, inputs: Any, factors: bool) -> Tensor:
    """The loss of a model whose dropouts drop what the first cycle's masks leave out."""
    groups = {group.name: group for group in report.thin.groups}
    kept = kept_units(list(groups.values()), 0)

    def drop(path: str, module: nn.Module, _: object, output: Tensor) -> Tensor:
        (name, kind), *more = report[path].masks.items()
        layers = ", ".join([name, *dict(more)])
        group = groups[name if kind in ("hidden", "channels") else f"{kind}s of {layers}"]
        there = torch.zeros(group.units, dtype=output.dtype)
        there[kept[group.name]] = group.units / group.kept if factors else 1.0
        shape = [1] * output.dim()
        shape[1 if isinstance(module, nn.Dropout2d) else -1] = -1
        return output * there.view(shape)

    for path, swap in report.items():
        if swap.replaced:
            model.get_submodule(path).register_forward_hook(partial(drop, path))
    with NoDropout():
        return loss_of(call(model, inputs))


REUSED = ("tagger", "language model")  # one dropout drops units of several kinds


@pytest.mark.parametrize(
    ("name", "optimizer", "rescale"),
    [(name, list(OPTIMIZERS)[i % 2], [None, False][i // 2 % 2]) for i, name in enumerate(CASES)],
)
def test_two_cycles_equal_the_literal_loop(name: str, optimizer: str, rescale: bool | None) -> None:
    """What dropouts gave counts as zero in absent units, whose entries and state stay until the joint step."""
    build, wanted = CASES[name]
    model, inputs = doubled(build)
    original = copy.deepcopy(model)
    model, report = mrreg.swap_dropout(model, 3, inputs, rescale=rescale, boost=2.0)
    assert {path: swap.masks for path, swap in report.items() if swap.replaced} == wanted
    assert report.thin is not None
    assert [type(model.get_submodule(path)) for path in wanted] == [nn.Identity] * len(wanted)
    plain = mrreg.unwrap(copy.deepcopy(model))
    assert list(plain.state_dict()) == list(model.state_dict())
    assert torch.equal(loss_of(call(model.eval(), inputs)), loss_of(call(original.eval(), inputs)))
    literal = LiteralTraining(plain.train(), report.thin.groups, OPTIMIZERS[optimizer], 3, 2.0, rescale is not False)
    own = OPTIMIZERS[optimizer](model.train().parameters())
    mrreg.attach(own, model)
    if name not in REUSED:
        there = dropping(original.train(), report, inputs, rescale is None)
    for t in range(6):
        own.zero_grad()
        with NoDropout():  # of what was left
            loss, expected = loss_of(call(model, inputs)), literal.step(inputs)
        if t == 0 and name not in REUSED:
            torch.testing.assert_close(loss, there, **TOLERANCE)
        loss.backward()  # type: ignore[no-untyped-call]
        own.step()
        torch.testing.assert_close(loss.detach(), expected, **TOLERANCE)
        for (key, value), other in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
            torch.testing.assert_close(value, other, **TOLERANCE, msg=f"{key} at step {t}")


def test_a_masked_step_computes_less_and_options_reach_the_mask() -> None:
    model: Any = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 2))
    model, report = mrreg.swap_dropout(model, 7, torch.randn(4, 8), rescale=False, boost=2)
    assert report.thin is not None
    assert (report.thin.masked_share, report.thin["0"].kept) == (0.5, 32)
    assert (mask_of(model).k, mask_of(model).rescale, mask_of(model).boost) == (7, False, 2)
    mrreg.unwrap(model)
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU, nn.Identity, nn.Linear]


def test_hugging_faces_bert() -> None:
    inputs = {"input_ids": torch.randint(32, (4, 6))}
    _, report = mrreg.swap_dropout(bert(hidden_dropout_prob=0.25), example_inputs=inputs)
    assert {path: swap.masks for path, swap in report.items() if swap.replaced} == {
        **{
            f"bert.encoder.layer.{i}.{part}.dropout": {f"bert.encoder.layer.{i}.{part}.dense": "output"}
            for i in range(2)
            for part in ("attention.output", "output")
        },
        "dropout": {"bert.pooler.dense": "hidden"},
    }
    listed = [path for path in report if path.endswith("()")]
    assert listed == [f"bert.encoder.layer.{i}.attention.self: scaled_dot_product_attention()" for i in range(2)]
