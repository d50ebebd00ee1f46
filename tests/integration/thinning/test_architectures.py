"""What thin finds in published models, and why not more; how many groups of each model is in docs/coverage.md."""

from functools import cache

import pytest
from helpers.architectures import build

import mrreg
from mrreg.thinning.report import ThinReport

NORMALIZED = "what follows mixes all of them"
OUTPUT = "they reach the model's output"
TIED = "has two roles"
REFUSED: dict[str, dict[str, str]] = {
    "gpt2": {"transformer.wte": TIED, "transformer.wte.weight[0]": OUTPUT},
    "llama": {"model.embed_tokens": NORMALIZED, "lm_head": OUTPUT},
}
ZEROED: dict[str, dict[str, str]] = {
    "phi3": {f"model.layers.{i}.self_attn.qkv_proj": "RuntimeError: mat1 and mat2" for i in (0, 1)},
}


@cache
def report_of(name: str) -> ThinReport:
    model, inputs = build(name)
    return mrreg.thin(model, p=0.5, example_inputs=inputs)[1]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_dropped_has_a_reason(name: str) -> None:
    report = report_of(name)
    for group, reason in REFUSED[name].items():
        assert reason in report[group].reason
        assert not report[group].admitted


@pytest.mark.parametrize("name", ZEROED)
def test_what_is_zeroed_has_the_reason_why_it_is_not_left_out(name: str) -> None:
    report = report_of(name)
    for group, reason in ZEROED[name].items():
        assert reason in report[group].reason
        assert ".py:" in report[group].reason


def test_grouped_query_attention_counts_key_and_value_heads() -> None:
    group = report_of("llama")["model.layers.0.self_attn.q_proj"]
    assert (group.units, group.kept) == (2, 1)
    widths = {slot.name.split(".")[-2]: slot.indices.shape[1] for slot in group.slots}
    assert widths == {"q_proj": 16, "k_proj": 8, "v_proj": 8, "o_proj": 16}


def test_a_fused_gate_and_its_unit_lie_in_one_weight() -> None:
    group = report_of("phi3")["model.layers.0.mlp.gate_up_proj"]
    producer = group.slots[0]
    assert producer.indices[5].tolist() == [5, 48 + 5]


def test_squeeze_and_excitation_belongs_to_the_channels_it_scales() -> None:
    report = report_of("efficientnet")
    slots = {(slot.name, slot.dim): slot.role for slot in report["features.2.0.block.0.0"].slots}
    block = "features.2.0.block"
    assert slots[f"{block}.2.fc2.weight", 0] == "producer"
    assert slots[f"{block}.2.fc1.weight", 1] == "consumer"
    assert slots[f"{block}.1.0.weight", 0] == "member"  # the depthwise convolution
    assert slots[f"{block}.1.1.running_var", 0] == "member"
    assert report[f"{block}.2.fc1"].units == 4


def test_the_slope_of_a_prelu_below_a_max_pool_is_a_member() -> None:
    assert ("4.weight", 0, "member") in {(slot.name, slot.dim, slot.role) for slot in report_of("lenet")["3"].slots}


def test_the_residual_stream_is_dropped_where_it_is_named() -> None:
    model, inputs = build("resnet18")
    _, report = mrreg.thin(model, p={"stream": 0.25}, example_inputs=inputs)
    streams = {name: entry for name, entry in report.items() if entry.admitted}
    assert set(streams) == {"conv1", "layer2.0.conv2"}
    assert streams["conv1"].kept == 48
