"""Compact masked steps equal masked weights for any shape, share, structure, dtype, with and without bias."""

import torch
from helpers.compact_oracle import gradients, masked_call, units_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mrreg.masks import compact_forward as compact

SIZE = st.integers(1, 9)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}


def check(module: nn.Module, structure: str, width: int, p: float, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Output and all gradients agree, and dropped entries get exactly zero."""
    module.to(dtype)
    kept = torch.randperm(width)[: width - round(p * width)].sort().values
    units = units_of(module, structure, kept, scale=1 / (1 - p) if p < 1 else 1.0, bias=False)
    features = torch.randn(shape, dtype=dtype, requires_grad=True)
    ours = gradients(module, features, lambda: compact.forward(module, structure, units, (features,), {}))
    theirs = gradients(module, features, lambda: masked_call(module, units, features))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for (name, parameter), gradient in zip(module.named_parameters(), ours[1][1:], strict=True):
        if name in units:
            assert not gradient.index_fill(units[name].dim, units[name].kept, 0).any(), name
        assert gradient.shape == parameter.shape


@given(
    SIZE,
    SIZE,
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(["input", "output"]),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from(list(TOLERANCE)),
)
def test_linear(
    inputs: int, outputs: int, batch: list[int], structure: str, p: float, bias: bool, dtype: torch.dtype
) -> None:
    module = nn.Linear(inputs, outputs, bias=bias)
    check(module, structure, inputs if structure == "input" else outputs, p, (*batch, inputs), dtype)


@given(
    st.sampled_from([nn.Conv1d, nn.Conv2d, nn.Conv3d]),
    SIZE,
    SIZE,
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["input", "output"]),
    st.floats(0, 0.99),
    st.booleans(),
)
def test_convolution(
    kind: type[nn.Conv1d | nn.Conv2d | nn.Conv3d],
    inputs: int,
    outputs: int,
    kernel: int,
    batched: bool,
    structure: str,
    p: float,
    bias: bool,
) -> None:
    module = kind(inputs, outputs, kernel, padding=1, bias=bias)
    width = inputs if structure == "input" else outputs
    spatial = [4] * (module.weight.dim() - 2)
    if width == round(p * width):
        return  # torch has no convolution without channels
    check(module, structure, width, p, (*([2] if batched else []), inputs, *spatial), torch.float64)


ACTIVATIONS = [nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, nn.ELU, nn.Hardswish, nn.Softsign, nn.PReLU]


@given(
    SIZE,
    SIZE,
    SIZE,
    st.sampled_from(ACTIVATIONS),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_pair(
    inputs: int, hidden: int, outputs: int, activation: type[nn.Module], p: float, bias: bool, dtype: torch.dtype
) -> None:
    module = nn.Sequential(nn.Linear(inputs, hidden, bias), activation(), nn.Linear(hidden, outputs, bias))
    check(module, "hidden", hidden, p, (3, inputs), dtype)
