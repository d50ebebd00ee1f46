"""The compact kernels beside the same computation with masked weights: numbers, gradients, held entries, refusals."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.compact_oracle import gradients, masked_call, units_of
from torch import Tensor, nn

from mrreg.masks import compact_forward as compact
from mrreg.masks.compact_forward import Units


def pair(activation: nn.Module | None = None, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 10, bias=bias), activation or nn.GELU(), nn.Linear(10, 4, bias=bias))


CASES: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], str, int]] = [
    ("linear", lambda: nn.Linear(6, 5), (3, 6), "input", 6),
    ("linear_1d_features", lambda: nn.Linear(6, 5), (6,), "input", 6),
    ("linear_3d_features", lambda: nn.Linear(6, 5), (2, 3, 6), "output", 5),
    ("linear_no_bias", lambda: nn.Linear(6, 5, bias=False), (3, 6), "output", 5),
    ("linear_vector", lambda: nn.Linear(6, 5), (6,), "output", 5),
    ("conv1d", lambda: nn.Conv1d(4, 6, 3, stride=2), (2, 4, 9), "input", 4),
    ("conv1d_unbatched", lambda: nn.Conv1d(4, 6, 3), (4, 9), "output", 6),
    ("conv2d", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 5, 5), "output", 6),
    ("conv2d_same", lambda: nn.Conv2d(4, 6, (3, 1), padding="same"), (2, 4, 5, 5), "input", 4),
    ("conv3d", lambda: nn.Conv3d(4, 6, 2, dilation=2), (2, 4, 4, 4, 4), "input", 4),
    ("conv3d_unbatched", lambda: nn.Conv3d(4, 6, 2), (4, 3, 3, 3), "output", 6),
    ("pair", pair, (3, 6), "hidden", 10),
    ("pair_no_bias", lambda: pair(bias=False), (3, 6), "hidden", 10),
    ("pair_3d", pair, (2, 3, 6), "hidden", 10),
    ("pair_conv", lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 2, 2)), (2, 3, 7), "hidden", 8),
    ("encoder", lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (2, 3, 4), "hidden", 8),
    ("encoder_norm_first", lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, norm_first=True), (3, 2, 4), "hidden", 8),
]


@pytest.mark.parametrize(("build", "shape", "structure", "width"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.parametrize("masked_bias", [True, False])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_equals_masked_weights(
    build: Callable[[], nn.Module], shape: tuple[int, ...], structure: str, width: int, masked_bias: bool, scale: float
) -> None:
    module = build().double()
    kept = torch.randperm(width)[: width // 2].sort().values
    units = units_of(module, structure, kept, scale, masked_bias)
    features = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert compact.unnoticed(module)
    ours = gradients(module, features, lambda: compact.forward(module, structure, units, (features,), {}))
    theirs = gradients(module, features, lambda: masked_call(module, units, features))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("build", "shape", "structure", "width"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_dropped_entries_are_never_read_and_get_exactly_zero(
    build: Callable[[], nn.Module], shape: tuple[int, ...], structure: str, width: int, poison: float
) -> None:
    module = build()
    kept, dropped = torch.arange(width // 2), torch.arange(width // 2, width)
    units = units_of(module, structure, kept)
    with torch.no_grad():
        for name, drawn in units.items():
            module.get_parameter(name).index_fill_(drawn.dim, dropped, poison)
    out = compact.forward(module, structure, units, (torch.randn(shape),), {})
    assert out.isfinite().all()
    out.sum().backward()
    for name, drawn in units.items():
        gradient = module.get_parameter(name).grad
        assert gradient is not None
        assert gradient.isfinite().all()
        assert not gradient.index_select(drawn.dim, dropped).any()


def test_infinite_features_of_dropped_inputs_drop_out() -> None:
    """Differs from masked weights on purpose: there 0 * inf is NaN; here nobody computes it."""
    module, features = nn.Linear(4, 3), torch.randn(2, 4)
    features[:, 3] = torch.inf
    units = units_of(module, "input", torch.arange(3))
    assert masked_call(module, units, features).isnan().all()
    assert compact.forward(module, "input", units, (features,), {}).isfinite().all()


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("structure", ["input", "output"])
def test_no_unit_or_every_unit_kept(structure: str, count: int) -> None:
    module, features = nn.Linear(4, 4), torch.randn(2, 4)
    units = units_of(module, structure, torch.arange(count))
    torch.testing.assert_close(
        compact.forward(module, structure, units, (features,), {}), masked_call(module, units, features)
    )


def test_decoder_layer() -> None:
    module = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0)
    units = units_of(module, "hidden", torch.tensor([1, 2, 7]))
    target, memory = torch.randn(3, 2, 4), torch.randn(5, 2, 4)
    torch.testing.assert_close(
        compact.forward(module, "hidden", units, (target, memory), {}), masked_call(module, units, target, memory)
    )


def test_dropout_inside_the_pair_acts_on_the_kept_units() -> None:
    """Mean and scale are those of dropout after masked weights; only the random numbers differ."""
    first, last = nn.Linear(1, 4096, bias=False), nn.Linear(4096, 1, bias=False)
    nn.init.ones_(first.weight)
    nn.init.constant_(last.weight, 1 / 2048)
    pairs = nn.Sequential(first, nn.ReLU(), nn.Dropout(0.25), last)
    kept = Units(0, torch.arange(2048))
    units = {"0.weight": kept, "3.weight": Units(1, kept.kept)}
    out = compact.forward(pairs, "hidden", units, (torch.ones(1, 1),), {})
    assert out.item() != 1
    assert out.item() == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("structure", ["input", "output", "hidden"])
def test_double_backward(structure: str) -> None:
    module = (pair(nn.Tanh()) if structure == "hidden" else nn.Linear(6, 6)).double()
    units = units_of(module, structure, torch.tensor([0, 3, 4]))
    features = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)

    def penalty(run: Callable[[], Tensor]) -> list[Tensor]:
        (slope,) = torch.autograd.grad(run().square().sum(), features, create_graph=True)
        return list(torch.autograd.grad(slope.square().sum(), list(module.parameters()), materialize_grads=True))

    ours = penalty(lambda: compact.forward(module, structure, units, (features,), {}))
    torch.testing.assert_close(ours, penalty(lambda: masked_call(module, units, features)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("structure", ["input", "output", "hidden"])
def test_autocast_and_bfloat16(structure: str) -> None:
    module = pair() if structure == "hidden" else nn.Linear(6, 6)
    units = units_of(module, structure, torch.tensor([0, 3, 4]), bias=structure == "hidden")
    features = torch.randn(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        ours = compact.forward(module, structure, units, (features,), {})
        theirs = masked_call(module, units, features)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs)
    module.bfloat16()
    ours = compact.forward(module, structure, units, (features.bfloat16(),), {})
    torch.testing.assert_close(ours, masked_call(module, units, features.bfloat16()))


class OwnForward(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).abs()


def hooked(register: str) -> nn.Module:
    module = pair()
    getattr(module[0], register)(lambda *_: None)
    return module


def patched() -> nn.Module:
    module = nn.Linear(6, 5)
    module.forward = module.forward  # type: ignore[method-assign]
    return module


NOTICED: list[tuple[str, Callable[[], nn.Module]]] = [
    ("subclass", lambda: OwnForward(6, 5)),
    ("patched_forward", patched),
    ("groups", lambda: nn.Conv2d(4, 4, 3, groups=2)),
    ("subclass_in_pair", lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), OwnForward(5, 6))),
    ("groups_in_pair", lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2))),
    ("slope_for_each_unit", lambda: pair(nn.PReLU(10))),
    ("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))),
    *((name, partial(hooked, name)) for name in [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ]),
]  # fmt: skip


@pytest.mark.parametrize("build", [c[1] for c in NOTICED], ids=[c[0] for c in NOTICED])
def test_refuses_where_smaller_tensors_would_be_noticed(build: Callable[[], nn.Module]) -> None:
    assert not compact.unnoticed(build())


PAYS: list[tuple[str, Callable[[], nn.Module], str, int, tuple[int, ...], bool]] = [
    ("big_batch", lambda: nn.Linear(512, 512), "input", 256, (512, 512), True),
    ("one_row", lambda: nn.Linear(512, 512), "input", 256, (1, 512), False),
    ("few_outputs", lambda: nn.Linear(512, 4), "input", 256, (512, 512), False),
    ("nothing_dropped", lambda: nn.Linear(512, 512), "input", 512, (512, 512), False),
    ("wrong_width", lambda: nn.Linear(512, 512), "input", 256, (512, 640), False),
    ("wrong_dimension", lambda: nn.Conv2d(64, 64, 3), "input", 32, (64,), False),
    ("no_features", lambda: nn.Linear(0, 8), "output", 4, (512, 0), False),
    ("no_channel_left", lambda: nn.Conv2d(64, 64, 3), "input", 0, (8, 64, 16, 16), False),
    ("convolution", lambda: nn.Conv2d(64, 64, 3), "output", 32, (8, 64, 16, 16), True),
    ("channels_last", lambda: nn.Conv2d(64, 64, 3).to(memory_format=torch.channels_last), "input", 51, (8, 64, 16, 16),
     False),
    ("pair", lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), "hidden", 128, (512, 64), True),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(("build", "structure", "kept", "shape", "expected"), [c[1:] for c in PAYS],
                         ids=[c[0] for c in PAYS])  # fmt: skip
def test_pays_is_decided_by_size(
    build: Callable[[], nn.Module], structure: str, kept: int, shape: tuple[int, ...], expected: bool
) -> None:
    module = build()
    units = units_of(module, structure, torch.arange(kept))
    assert compact.pays(module, structure, units, (torch.empty(shape),)) is expected


@pytest.mark.parametrize("args", [(), ([[1.0, 2.0]],)])
def test_calls_without_a_leading_tensor_are_left_alone(args: tuple[Any, ...]) -> None:
    assert not compact.pays(nn.Linear(2, 2), "input", units_of(nn.Linear(2, 2), "input", torch.tensor([0])), args)


@pytest.mark.parametrize(("build", "structure", "expected"), [
    (lambda: nn.Linear(64, 64), "input", True),
    (lambda: nn.Linear(64, 64), "weight", False),
    (lambda: OwnForward(64, 64), "input", False),
    (lambda: nn.Bilinear(64, 64, 64), "output", False),
])  # fmt: skip
def test_chosen_for_known_types_only(build: Callable[[], nn.Module], structure: str, expected: bool) -> None:
    units = {"weight": Units(1, torch.arange(8))}
    assert compact.should_use(build(), structure, units, (torch.empty(512, 64),)) is expected
