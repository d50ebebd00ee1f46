"""swap_dropout with groups: dropout between the layers of a group drops its units, DropPath its branch."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.thin import TOLERANCE, mask_of
from helpers.thin_oracle import LiteralTraining, Make, as_call, call, loss_of
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

import mrreg

OPTIMIZERS: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.01, momentum=0.9, weight_decay=0.01),
    "AdamW": partial(AdamW, lr=0.001, eps=0.01, weight_decay=0.1),
}


class Gated(nn.Module):
    """A residual block whose hidden units are products, with dropout on them and on what is added."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(6, 10), nn.Linear(6, 10), nn.Linear(10, 6)
        self.inner, self.outer = nn.Dropout(0.3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(self.down(self.inner(torch.sigmoid(self.gate(x)) * self.up(x))))  # type: ignore[no-any-return]


def mlp() -> nn.Module:
    layers = [nn.Dropout(0.25), nn.Linear(8, 16), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(16, 12), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.25), nn.Linear(12, 3))


def convolutions() -> nn.Module:
    body = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.5), nn.Conv2d(16, 8, 3), nn.ReLU()]
    return nn.Sequential(*body, nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(8 * 4, 4))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.25, batch_first=True, activation=torch.sigmoid)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for each in model.layers:
        each.self_attn.dropout = 0.0
    return model


CASES: dict[Callable[[], nn.Module], tuple[tuple[int, ...], dict[str, dict[str, str]]]] = {
    mlp: ((5, 8), {"0": {"1": "input"}, "3": {"1": "hidden"}, "6": {"4": "hidden"}}),
    convolutions: ((4, 3, 6, 6), {"3": {"0": "channels"}, "6": {"4": "channels"}}),
    Gated: ((5, 6), {"inner": {"gate": "hidden"}, "outer": {"down": "output"}}),
    encoder: (
        (3, 4, 8),
        {
            f"layers.{i}.{dropout}": {f"layers.{i}.{path}": kind}
            for i in range(2)
            for dropout, path, kind in [
                ("dropout", "linear1", "hidden"),
                ("dropout1", "self_attn", "output"),
                ("dropout2", "linear2", "output"),
            ]
        },
    ),
}


@pytest.mark.parametrize("rescale", [None, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("build", CASES)
def test_two_cycles_equal_the_literal_loop(
    build: Callable[[], nn.Module], optimizer: str, rescale: bool | None
) -> None:
    """What dropouts gave counts as zero in absent units, whose entries and state stay until the joint step."""
    torch.manual_seed(0)
    model, (shape, wanted) = build().double(), CASES[build]
    model, report = mrreg.swap_dropout(model, 3, torch.randn(shape).double(), rescale=rescale, boost=2.0)
    assert report.obstacle == ""
    assert {path: swap.masks for path, swap in report.items() if swap.replaced} == wanted
    assert report.thin is not None
    assert not any(isinstance(module, nn.Dropout | nn.Dropout2d) for module in model.modules())
    plain = mrreg.unwrap(copy.deepcopy(model))
    assert list(plain.state_dict()) == list(model.state_dict())
    literal = LiteralTraining(plain, report.thin.groups, OPTIMIZERS[optimizer], 3, 2.0, rescale is not False)
    own = OPTIMIZERS[optimizer](model.parameters())
    mrreg.attach(own, model)
    for t in range(6):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(t)).double()
        own.zero_grad()
        loss = loss_of(call(model, x))
        loss.backward()  # type: ignore[no-untyped-call]
        own.step()
        torch.testing.assert_close(loss.detach(), literal.step(x), **TOLERANCE)
        for (name, value), other in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
            torch.testing.assert_close(value, other, **TOLERANCE, msg=f"{name} at step {t}")


def test_a_masked_step_computes_less() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 2))
    _, report = mrreg.swap_dropout(model, example_inputs=torch.randn(4, 8))
    assert report.thin is not None
    assert report.thin.masked_share == 0.5
    assert report.thin["0"].kept == 32
    assert str(report).endswith(report.thin.summary())


def test_numbers_of_units_are_those_of_thin() -> None:
    """Convolutions keep a multiple of eight channels; p = 1 is no group, since one unit would stay."""
    wide = nn.Sequential(nn.Conv2d(3, 20, 1), nn.ReLU(), nn.Dropout2d(0.5), nn.Conv2d(20, 4, 1))
    _, report = mrreg.swap_dropout(wide, example_inputs=torch.randn(2, 3, 4, 4))
    assert report.thin is not None
    assert report.thin["0"].kept == 8
    whole: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(1.0), nn.Linear(8, 2))
    whole, report = mrreg.swap_dropout(whole, example_inputs=torch.randn(2, 4))
    assert report.thin is None
    assert isinstance(whole[3], mrreg.MultirateMask)


def test_dropout_of_single_features_is_not_dropout_of_channels() -> None:
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8 * 4, 4)]
    model, report = mrreg.swap_dropout(nn.Sequential(*layers), example_inputs=torch.randn(2, 3, 4, 4))
    assert report["3"].masks == {"4": "input"}
    assert report.thin is None
    assert isinstance(model.get_submodule("4"), mrreg.MultirateMask)


def test_units_that_are_read_without_the_dropout_too_are_no_group() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three, self.drop = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2), nn.Dropout()

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.one(x))
            return self.two(self.drop(y)) + self.three(y)  # type: ignore[no-any-return]

    model, report = mrreg.swap_dropout(Both(), example_inputs=torch.randn(2, 4))
    assert report["drop"].masks == {"two": "input"}
    assert isinstance(model.two, mrreg.MultirateMask)


def test_recurrent_layers_keep_masks_beside_groups() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(6, 6, 2, dropout=0.5, batch_first=True)
            self.up, self.drop, self.down = nn.Linear(6, 12), nn.Dropout(0.5), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.drop(torch.tanh(self.up(self.rnn(x)[0]))))  # type: ignore[no-any-return]

    model, report = mrreg.swap_dropout(Tagger(), 3, torch.randn(2, 5, 6))
    assert {path: swap.masks for path, swap in report.items()} == {
        "rnn.dropout": {"rnn": "input"},
        "drop": {"up": "hidden"},
    }
    assert isinstance(model.rnn, mrreg.MultirateMask)
    optimizer = torch.optim.Adam(model.parameters())
    handle = mrreg.attach(optimizer, model)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(2, 5, 6)).sum().backward()
        optimizer.step()
    told = str(handle)
    assert "up" in told
    assert "rnn" in told


def test_a_frozen_consumer_keeps_its_dropout() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    model[3].requires_grad_(False)
    _, report = mrreg.swap_dropout(model, example_inputs=torch.randn(2, 4))
    assert report["2"].masks == {"0": "output"}


def test_a_forward_that_only_runs_in_its_own_precision_gets_masks_and_the_report_says_why() -> None:
    class Single(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype == torch.float64:
                raise TypeError("no doubles")
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]

    model: Any = Single(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    model, report = mrreg.swap_dropout(model, example_inputs=torch.randn(2, 4))
    assert report["2"].masks == {"3": "input"}
    assert report.thin is None
    assert "Groups of units were not looked for: TypeError: no doubles" in str(report)


def test_layers_inside_a_checkpoint_get_masks_of_their_own() -> None:
    """A thin model would recompute them with whole weights."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.up, self.drop, self.down = Gated(), nn.Linear(6, 12), nn.Dropout(0.5), nn.Linear(12, 3)
            self.block.inner.p = 0.0

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.block, x, use_reentrant=False) if self.training else self.block(x)
            return self.down(self.drop(torch.tanh(self.up(x))))  # type: ignore[no-any-return]

    model, report = mrreg.swap_dropout(Checkpointed(), 3, torch.randn(2, 6))
    assert {path: swap.masks for path, swap in report.items() if swap.replaced} == {
        "block.outer": {"block.down": "output"},
        "drop": {"down": "input"},
    }
    assert "activation checkpointing" in report.obstacle
    optimizer = SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    model(torch.randn(2, 6)).sum().backward()
    optimizer.step()


def vision_transformer() -> tuple[nn.Module, Any]:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}
    model = timm.models.VisionTransformer(**sizes, drop_path_rate=0.5, proj_drop_rate=0.25)
    return model, torch.randn(2, 3, 16, 16)


def swin() -> tuple[nn.Module, Any]:
    models = pytest.importorskip("torchvision.models")
    sizes = {"patch_size": [2, 2], "embed_dim": 8, "depths": [4], "num_heads": [2], "window_size": [2, 2]}
    return models.SwinTransformer(**sizes, num_classes=4, dropout=0.25, stochastic_depth_prob=0.5), torch.randn(
        2, 3, 8, 8
    )


@pytest.mark.parametrize("build", [vision_transformer, swin])
def test_drop_paths_become_blocks_and_the_dropouts_inside_groups(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    model, inputs = build()
    model, report = mrreg.swap_dropout(model, 3, inputs)
    assert report.obstacle == ""
    assert report.thin is not None
    (blocks,) = [group for group in report.thin.groups if group.blocks]
    names = {block.name for block in blocks.blocks}
    replaced = {path: masks for swap in report.values() for path, masks in swap.masks.items() if masks == "blocks"}
    assert set(replaced) == names
    reasons = {swap.reason for swap in report.values() if "blocks" in swap.masks.values()}
    number = f"{blocks.units - blocks.kept} of {blocks.units} branches"
    assert reasons == {f"{number} are off in a cycle, all with the same probability; those are not computed"}
    assert any(swap.masks and "hidden" in swap.masks.values() for swap in report.values())
    assert not any(isinstance(module, mrreg.MultirateMask) for module in model.modules())
    optimizer = SGD(model.parameters(), lr=0.01)
    mrreg.attach(optimizer, model)
    off = mask_of(model).off
    absent = [p for n, p in model.named_parameters() for i in off if n in blocks.blocks[i].parameters]
    before = [p.detach().clone() for p in absent]
    assert absent
    args, _ = as_call(inputs)
    model.train()
    for step in range(3):
        optimizer.zero_grad()
        model(*args).square().sum().backward()
        optimizer.step()
        stayed = [torch.equal(p, old) for p, old in zip(absent, before, strict=True)]
        assert all(stayed) == (step < 2)


def test_options_reach_the_mask_and_unwrap_takes_it_out() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    model, _ = mrreg.swap_dropout(model, 7, torch.randn(2, 4), rescale=False, boost=2)
    mask = mask_of(model)
    assert (mask.k, mask.rescale, mask.boost) == (7, False, 2)
    mrreg.unwrap(model)
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU, nn.Identity, nn.Linear]
