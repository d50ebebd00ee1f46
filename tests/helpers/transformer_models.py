"""A small BERT and sentences for it."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset


def bert(**options: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="the Trainer needs Accelerate")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=32, **sizes, **options))


class Sentences(Dataset[dict[str, Tensor]]):
    """64 random ones."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        words = torch.randint(32, (7,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words[0] % 2}
