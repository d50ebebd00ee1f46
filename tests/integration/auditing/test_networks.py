"""The audit of networks that people fine-tune, and of activation checkpointing."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import resnet18
from transformers import BertConfig, BertForMaskedLM, DistilBertConfig, DistilBertForSequenceClassification

import mrreg
from mrreg.auditing import measure

WORDS = {"input_ids": torch.randint(60, (2, 6)), "attention_mask": torch.ones(2, 6, dtype=torch.long)}

pytestmark = pytest.mark.slow


def test_resnet_whose_early_layer_makes_it_go_backward_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 1.0)
    model, images = resnet18(num_classes=3), torch.randn(2, 3, 32, 32)
    report = mrreg.audit(model, fast="fc", example_inputs=images)
    assert report["reached"] == []
    assert len(report["batch_norm"]) == 20
    assert report.speedup(5) > report.speedup(2) > 1.2
    early = mrreg.audit(model, fast=["conv1", "fc"], example_inputs=images)
    assert early["forced_by"] == ["conv1.weight"]
    assert early["reached_share"] == pytest.approx(1)
    assert early.speedup(10) < report.speedup(10)


@pytest.mark.usefixtures("quick_audit")
def test_encoder_with_a_head() -> None:
    model = DistilBertForSequenceClassification(
        DistilBertConfig(n_layers=3, dim=16, hidden_dim=32, n_heads=2, vocab_size=60)
    )
    report = mrreg.audit(model, fast=["pre_classifier", "classifier"], example_inputs=WORDS)
    assert report["reached"] == []
    labelled = mrreg.audit(model, fast="classifier", example_inputs=WORDS | {"labels": torch.tensor([0, 1])})
    assert labelled["reached"] == []


@pytest.mark.usefixtures("quick_audit")
def test_head_tied_to_the_embedding() -> None:
    config = BertConfig(num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2, vocab_size=60)
    model = BertForMaskedLM(config)
    report = mrreg.audit(model, fast="cls", example_inputs=WORDS)
    assert set(report["forced_by"]) >= {
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.weight",
    }
    assert report["reached_share"] > 0.9
    assert "tied to" in str(report)


class Checkpointed(nn.Module):
    """A body whose activations are computed again in the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.body, x, use_reentrant=self.use_reentrant)
        return self.head(hidden)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("quick_audit")
def test_activation_checkpointing() -> None:
    report = mrreg.audit(Checkpointed(use_reentrant=False), fast="head", example_inputs=torch.randn(3, 4))
    assert report["reached"] == []
    assert report["parts"]["slow"]["without_gradient"] == []


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_fast_part_cut_off_by_reentrant_checkpointing() -> None:
    with pytest.raises(ValueError, match="use_reentrant=False"):
        mrreg.audit(Checkpointed(use_reentrant=True), fast="body", example_inputs=torch.randn(3, 4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_on_a_gpu_is_the_allocators() -> None:
    model = resnet18(num_classes=3).cuda()
    report = mrreg.audit(model, fast="fc", example_inputs=torch.randn(8, 3, 64, 64, device="cuda"))
    assert 0 < report["bytes"]["fast"] < report["bytes"]["full"]
