"""Attention with fewer heads computes what torch's does with zeros in the columns that read the others."""

from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mrreg.masks.attention import MultiheadAttention, attend

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "without bias": {"bias": False},
    "own widths of keys and values": {"kdim": 6, "vdim": 10},
}
LENGTH, KEYS, BATCH, HEADS = 5, 7, 3, 2


def masks() -> dict[str, dict[str, Any]]:
    causal = torch.ones(LENGTH, KEYS, dtype=torch.bool).triu(1)
    padding = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padding[1, 5:] = True
    every = torch.randn(BATCH * HEADS, LENGTH, KEYS).double()
    return {
        "none": {},
        "bool": {"attn_mask": causal},
        "one for each head": {"attn_mask": every},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": every.mean(0), "key_padding_mask": padding.double() * -3},
        "causal": {"attn_mask": causal, "is_causal": True},
        "causal and padding": {"attn_mask": causal, "is_causal": True, "key_padding_mask": padding},
    }


@pytest.mark.parametrize(
    ("form", "mask", "weights"),
    [*zip(cycle(FORMS), [*masks()] * 3, cycle(["no", "mean", "each", "no", "each"]))],
)
def test_it_computes_what_torch_does(form: str, mask: str, weights: str) -> None:
    torch.manual_seed(0)
    options = FORMS[form]
    module = nn.MultiheadAttention(8, HEADS, **options).double()
    query = torch.randn(LENGTH, BATCH, 8).double()
    key = torch.randn(KEYS, BATCH, options.get("kdim", 8)).double()
    value = torch.randn(KEYS, BATCH, options.get("vdim", 8)).double()
    inputs = (query, key, value)
    if options.get("batch_first"):
        inputs = (query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1))
    settings = {**masks()[mask], "need_weights": weights != "no", "average_attn_weights": weights == "mean"}
    check(module, inputs, settings)


@pytest.mark.parametrize("weights", [False, True])
def test_self_attention_without_a_batch(weights: bool) -> None:
    x = torch.randn(LENGTH, 8).double()
    check(nn.MultiheadAttention(8, HEADS, batch_first=True).double(), (x, x, x), {"need_weights": weights})


def check(module: nn.MultiheadAttention, inputs: tuple[Tensor, Tensor, Tensor], settings: dict[str, Any]) -> None:
    found, expected = attend(module, *inputs, **settings), module(*inputs, **settings)
    torch.testing.assert_close(found[0], expected[0])
    assert (found[1] is None) == (expected[1] is None)
    if found[1] is not None:
        torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("same", [True, False])
def test_a_head_that_is_left_out_counts_as_zero_in_the_output_projection(same: bool) -> None:
    torch.manual_seed(0)
    whole = nn.MultiheadAttention(8, 4, batch_first=True).double()
    x = torch.randn(BATCH, LENGTH, 8).double()
    inputs = (x, x, x) if same else (x, x.flip(1), x.flip(0))
    kept = torch.tensor([0, 1, 4, 5])  # heads 0 and 2
    small = nn.MultiheadAttention(8, 4, batch_first=True).double()
    rows = torch.cat([kept, kept + 8, kept + 16])
    small.in_proj_weight = nn.Parameter(whole.in_proj_weight[rows].detach())
    small.in_proj_bias = nn.Parameter(whole.in_proj_bias[rows].detach())
    small.out_proj.weight = nn.Parameter(whole.out_proj.weight[:, kept].detach())
    small.out_proj.bias = whole.out_proj.bias
    with torch.no_grad():
        whole.out_proj.weight[:, [2, 3, 6, 7]] = 0
    torch.testing.assert_close(attend(small, *inputs)[0], whole(*inputs)[0])


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_units_of_one_input_that_are_left_out_count_as_zero(stream: int) -> None:
    """With all heads there; in a thin model, whose attention modules have the class."""
    torch.manual_seed(0)
    whole = nn.MultiheadAttention(8, 4, kdim=6, vdim=10, batch_first=True).double()
    small = MultiheadAttention(8, 4, kdim=6, vdim=10, batch_first=True).double()
    small.load_state_dict(whole.state_dict())
    name = ["q_proj_weight", "k_proj_weight", "v_proj_weight"][stream]
    setattr(small, name, nn.Parameter(getattr(whole, name)[:, :5].detach()))
    with torch.no_grad():
        getattr(whole, name)[:, 5:] = 0
    inputs = [torch.randn(BATCH, LENGTH, width).double() for width in (8, 6, 10)]
    expected = whole(*inputs)[0]
    inputs[stream] = inputs[stream][..., :5]
    torch.testing.assert_close(small(*inputs)[0], expected)
    query, key, value = inputs
    torch.testing.assert_close(small(query=query, value=value, key=key)[0], expected)
