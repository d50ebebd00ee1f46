"""Seconds of training thin networks against the same networks whole, nn.Dropout beside them."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mrreg
from benchmarks.core.sections import Section
from benchmarks.experiments.speed.common import Case, Network, SpeedConfig, beside_dropout, section
from mrreg.thinning.counts import DEFAULTS

VOCABULARY = 30522


def mlp(p: float, widths: tuple[int, ...] = (784, 1000, 1000, 10)) -> nn.Module:
    """Linear layers with ReLU, and dropout before all but the first."""
    layers: list[nn.Module] = []
    for place, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.ReLU(), nn.Dropout(p)] * (place > 0) + [nn.Linear(inputs, outputs)]
    return nn.Sequential(*[layer for layer in layers if p or not isinstance(layer, nn.Dropout)])


class EncoderBlock(nn.Module):
    """Attention and a feed-forward half, each behind a LayerNorm and beside a residual sum."""

    def __init__(self, p: float, width: int = 256, hidden: int = 1024, heads: int = 8) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.p = p
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, -1, self.head_dim))
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, head_dim)
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.up(self.norm2(x)))
        narrow: Tensor = self.down(F.dropout(hidden, self.p, self.training) if self.p else hidden)
        return x + narrow


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm and a residual sum."""

    def __init__(self, p: float, channels: int = 64) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout2d(p) if p else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the same shape."""
        y = self.dropout(F.relu(self.norm1(self.conv1(x))))
        return F.relu(x + self.norm2(self.conv2(y)))


def bert(p: float) -> nn.Module:
    """Build an encoder of four layers of width 256 with random weights."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=VOCABULARY,
        hidden_dropout_prob=p, attention_probs_dropout_prob=p,
    )  # fmt: skip
    return BertModel(config)


def network(build: Callable[[float], nn.Module], inputs: Callable[[], Tensor]) -> Network:
    """Return the network that `build` makes for a probability of dropout."""

    def made(case: Case, way: str) -> nn.Module:
        model = build((DEFAULTS["hidden"] if case.p is None else case.p) if way == "dropout" else 0.0)
        return mrreg.thin(model, p=case.p, k=case.k, example_inputs=inputs()[:2])[0] if way == "thin" else model

    return Network(made, inputs)


NETWORKS = {
    "8-16-16-4": network(partial(mlp, widths=(8, 16, 16, 4)), lambda: torch.randn(8, 8)),
    **{f"784-1000-1000-10, batch {n}": network(mlp, partial(torch.randn, n, 784)) for n in (32, 64, 128, 256, 512)},
    "encoder block 256/1024": network(EncoderBlock, lambda: torch.randn(16, 128, 256)),
    "nn.TransformerEncoderLayer": network(
        lambda p: nn.TransformerEncoderLayer(256, 8, 1024, p, batch_first=True), lambda: torch.randn(16, 128, 256)
    ),
    "two ResNet blocks of 64": network(
        lambda p: nn.Sequential(ResidualBlock(p), ResidualBlock(p)), lambda: torch.randn(16, 64, 32, 32)
    ),
    "BERT 4 x 256": network(bert, lambda: torch.randint(VOCABULARY, (16, 64))),
}
TARGETS = {
    "encoder block 256/1024": (0.68, 0.68),
    "BERT 4 x 256": (0.68, 0.80),
    "two ResNet blocks of 64": (0.68, 0.68),
    "nn.TransformerEncoderLayer": (0.70, 0.70),
    "784-1000-1000-10, batch 128": (1.00, 0.85),
    "784-1000-1000-10, batch 512": (0.68, 0.68),
}
AIMED = tuple(
    Case(network, optimizer, target)
    for network, targets in TARGETS.items()
    for optimizer, target in zip(("SGD", "AdamW"), targets, strict=True)
)
OTHERS = (
    Case("encoder block 256/1024", "SGD", 0.82, p=0.25),
    Case("BERT 4 x 256", "SGD", p=0.25),
    Case("784-1000-1000-10, batch 128", "SGD", p=0.25),
    *(Case(network, "SGD", k=10) for network in TARGETS),
    *(Case(network, "AdamW", p=None) for network in TARGETS),
    *(Case(f"784-1000-1000-10, batch {n}", "AdamW") for n in (32, 64, 256)),
    Case("encoder block 256/1024", "SGD", backend="inductor"),
    Case("784-1000-1000-10, batch 512", "SGD", backend="inductor"),
)
GPU = tuple(
    Case(network, optimizer, backend=backend, cycles=5)
    for backend in (None, "inductor")
    for network in TARGETS
    for optimizer in ("SGD", "AdamW")
)
PRESETS = {
    "smoke": SpeedConfig(2, (Case("8-16-16-4", "SGD", p=None), Case("8-16-16-4", "AdamW", p=0.25, k=2))),
    "cpu": SpeedConfig(11, AIMED + OTHERS),
    "gpu": SpeedConfig(21, GPU),
}


def _section(title: str, cases: tuple[Case, ...], preset: str) -> Section:
    note = (
        "Seconds of whole cycles of k = 5 at p = 0.5, unless a row says otherwise; below 1 is faster than plain. At "
        f"the defaults `mrreg.thin` is given nothing but inputs, and nn.Dropout p = {DEFAULTS['hidden']}."
    )
    return section(title, cases, [preset], "thin", note, label="thin")


SECTIONS = (
    _section("Seconds of training thin networks over plain training, one CPU thread", AIMED, "cpu"),
    _section("The same with other p and k, and compiled", OTHERS, "cpu"),
    _section("Seconds of training thin networks over plain training, GPU", GPU, "gpu"),
)
BENCHMARK = beside_dropout("speed thin", "thin", PRESETS, NETWORKS, SECTIONS)
