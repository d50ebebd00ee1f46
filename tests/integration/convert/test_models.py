"""swap_dropout on whole models: what the report says, the same numbers in evaluation, masks that act in training."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.masks import bits, of
from torch import Tensor, nn

import mrreg

Build = Callable[[], tuple[nn.Module, Any]]  # a model and its example inputs


def feed_forward() -> tuple[nn.Module, Any]:
    pair = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 4))
    return nn.Sequential(pair), torch.randn(8, 6)


def mnist_style() -> tuple[nn.Module, Any]:
    layers = [nn.Dropout(0.2), nn.Linear(8, 32), nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True), nn.Linear(32, 4)]
    return nn.Sequential(*layers), torch.randn(8, 8)


def convolutions() -> tuple[nn.Module, Any]:
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.5), nn.Conv2d(8, 8, 3, groups=2)]
    head = [nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(8 * 4, 4)]
    return nn.Sequential(nn.Sequential(*body), *head), torch.randn(4, 3, 8, 8)


def encoder() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.25, batch_first=True)
    return nn.TransformerEncoder(layer, 2), torch.randn(4, 5, 16)


def encoder_norm_first() -> tuple[nn.Module, Any]:
    return nn.TransformerEncoderLayer(16, 2, 32, 0.25, activation="gelu", norm_first=True), torch.randn(5, 4, 16)


def decoder() -> tuple[nn.Module, Any]:
    layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.25, batch_first=True)
    return nn.TransformerDecoder(layer, 1), (torch.randn(4, 5, 16), torch.randn(4, 3, 16))


class Tagger(nn.Module):
    """Embedding, dropout, LSTM with dropout between its layers, dropout, decoder."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(20, 8), nn.Dropout(0.25)
        self.rnn = kind(8, 16, num_layers=3, dropout=0.25, bidirectional=True, batch_first=True)
        self.out = nn.Linear(32, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.rnn(self.drop(self.embed(tokens)))
        return self.out(self.drop(states))  # type: ignore[no-any-return]


def tagger() -> tuple[nn.Module, Any]:
    return Tagger(), torch.randint(20, (4, 7))


def gru_tagger() -> tuple[nn.Module, Any]:
    return Tagger(nn.GRU), torch.randint(20, (4, 7))


def vision_transformer() -> tuple[nn.Module, Any]:
    models = pytest.importorskip("torchvision.models")
    sizes = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    model = models.VisionTransformer(**sizes, dropout=0.25, num_classes=4)
    nn.init.normal_(model.heads.head.weight)
    return model, torch.randn(4, 3, 16, 16)


def mobilenet() -> tuple[nn.Module, Any]:
    models = pytest.importorskip("torchvision.models")
    return models.mobilenet_v3_small(num_classes=4), torch.randn(4, 3, 32, 32)


def narrow_vgg() -> tuple[nn.Module, Any]:
    models = pytest.importorskip("torchvision.models")
    model = models.vgg11(num_classes=4, init_weights=False)
    model.avgpool = nn.AdaptiveAvgPool2d(1)
    model.classifier[0], model.classifier[3], model.classifier[6] = (
        nn.Linear(512, 64),
        nn.Linear(64, 64),
        nn.Linear(64, 4),
    )
    return model, torch.randn(4, 3, 32, 32)


def bert(attention: str) -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(
        vocab_size=50, **sizes, hidden_dropout_prob=0.25, num_labels=3, attn_implementation=attention
    )
    model = transformers.BertForSequenceClassification(config)
    for name, p in model.named_parameters():
        if "dense.weight" in name or name.startswith("classifier"):
            nn.init.normal_(p)  # not so small that rounding hides a mask
    return model, {"input_ids": torch.randint(50, (4, 6))}


def bert_sdpa() -> tuple[nn.Module, Any]:
    return bert("sdpa")


def bert_eager() -> tuple[nn.Module, Any]:
    return bert("eager")


def call(model: nn.Module, inputs: Any) -> Tensor:
    """The model's output on example inputs, with the same random numbers for the dropouts that are left."""
    torch.manual_seed(1)
    if isinstance(inputs, dict):
        return model(**inputs).logits  # type: ignore[no-any-return]
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)  # type: ignore[no-any-return]


def masks(model: nn.Module) -> Iterator[tuple[str, mrreg.MultirateMask]]:
    return ((path, m) for path, m in model.named_modules() if isinstance(m, mrreg.MultirateMask))


CASES: dict[Build, dict[str, dict[str, str]]] = {
    feed_forward: {"0.2": {"0.0": "hidden"}},
    mnist_style: {"0": {"1": "input"}, "3": {"4": "input"}},
    convolutions: {"0.3": {"0.4": "input"}, "2": {"4": "input"}},
    encoder: {
        f"layers.{i}.{dropout}": {f"layers.{i}.{layer}": "output"}
        for i in range(2)
        for dropout, layer in [("dropout1", "self_attn"), ("dropout2", "linear2")]
    }
    | {f"layers.{i}.dropout": {f"layers.{i}.linear1": "hidden"} for i in range(2)},
    encoder_norm_first: {
        "dropout1": {"self_attn": "output"},
        "dropout": {"linear1": "hidden"},
        "dropout2": {"linear2": "output"},
    },
    decoder: {
        "layers.0.dropout1": {"layers.0.self_attn": "output"},
        "layers.0.dropout2": {"layers.0.multihead_attn": "output"},
        "layers.0.dropout": {"layers.0.linear1": "hidden"},
        "layers.0.dropout3": {"layers.0.linear2": "output"},
    },
    tagger: {"drop": {"rnn": "input", "out": "input"}, "rnn.dropout": {"rnn": "input"}},
    gru_tagger: {"drop": {"rnn": "input", "out": "input"}, "rnn.dropout": {"rnn": "input"}},
    vision_transformer: {
        f"encoder.layers.encoder_layer_{i}.{dropout}": {f"encoder.layers.encoder_layer_{i}.{layer}": "output"}
        for i in range(2)
        for dropout, layer in [("dropout", "self_attention"), ("mlp.4", "mlp.3")]
    }
    | {
        f"encoder.layers.encoder_layer_{i}.mlp.2": {f"encoder.layers.encoder_layer_{i}.mlp.0": "hidden"}
        for i in range(2)
    },
    mobilenet: {"classifier.2": {"classifier.0": "hidden"}},
    narrow_vgg: {"classifier.2": {"classifier.0": "hidden"}, "classifier.5": {"classifier.3": "hidden"}},
    **{
        build: {
            **{
                f"bert.encoder.layer.{i}.{part}.dropout": {f"bert.encoder.layer.{i}.{part}.dense": "output"}
                for i in range(2)
                for part in ("attention.output", "output")
            },
            "dropout": {"bert.pooler.dense": "hidden"},
        }
        for build in (bert_sdpa, bert_eager)
    },
}

SLOW = {narrow_vgg}
every_case = pytest.mark.parametrize(
    "build",
    [pytest.param(b, id=b.__name__, marks=[pytest.mark.slow] if b in SLOW else []) for b in CASES],
)


@every_case
def test_masks_stand_where_dropout_was(build: Build) -> None:
    model, inputs = build()
    _, report = mrreg.swap_dropout(model, example_inputs=inputs)
    assert {path: swap.masks for path, swap in report.items() if swap.replaced} == CASES[build]


@every_case
@pytest.mark.parametrize("grad", [True, False])
def test_evaluation_gives_the_plain_numbers(build: Build, grad: bool) -> None:
    model, inputs = build()
    plain = copy.deepcopy(model).eval()
    model, _ = mrreg.swap_dropout(model, example_inputs=inputs)
    with torch.set_grad_enabled(grad):
        assert torch.equal(call(model.eval(), inputs), call(plain, inputs))


@every_case
def test_every_masked_tensor_acts(build: Build) -> None:
    """On a masked step the output does not see the slow entries of a tensor, and sees the others."""
    model, inputs = build()
    model, _ = mrreg.swap_dropout(model, k=3, example_inputs=inputs)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    before = call(model, inputs)
    for path, mask in masks(model):
        for target in of(mask).targets:
            p, kept = mask.get_parameter(target.name), bits(mask)[target.name].bool()
            true = p.detach().clone()
            for entries, same in [(~kept, True), (kept, False)]:
                with torch.no_grad():
                    p.add_(entries * torch.randn_like(p))
                assert torch.equal(call(model, inputs), before) == same, f"{path}.{target.name}"
                with torch.no_grad():
                    p.copy_(true)


@every_case
def test_a_cycle_trains(build: Build) -> None:
    model, inputs = build()
    model, _ = mrreg.swap_dropout(model, k=3, example_inputs=inputs)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    mrreg.attach(optimizer, model)
    start = copy.deepcopy(model.state_dict())
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(call(model, inputs).pow(2).mean())
        optimizer.step()
    for path, mask in masks(model):
        for target in of(mask).targets:
            name = f"{path}.{target.name}".lstrip(".")
            assert not torch.equal(model.state_dict()[name], start[name]), name
            assert mask.get_parameter(target.name).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "replaced", "left"),
    [
        ("vgg11", ["classifier.2", "classifier.5"], 0),
        ("mobilenet_v3_small", ["classifier.2"], 0),
        ("vit_b_16", [], 12 * 3 + 1),  # torchvision's default is p = 0
    ],
)
@pytest.mark.filterwarnings("ignore::mrreg.NoEffectWarning")
def test_the_models_themselves(name: str, replaced: list[str], left: int) -> None:
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        model, images = getattr(models, name)(), torch.empty(2, 3, 224, 224)
    for inputs in (None, images):
        _, report = mrreg.swap_dropout(copy.deepcopy(model), example_inputs=inputs)
        assert [path for path, swap in report.items() if swap.replaced] == replaced
        assert sum(not swap.replaced for swap in report.values()) == left
