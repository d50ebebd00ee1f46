"""The factor of what a mask keeps is where dropout had it, or the dropout is left; dropouts of one stream all count."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mrreg


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.norm(self.one(x)))  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.end = (nn.Linear(6, 6) for _ in range(3))
        self.drop, self.head = nn.Dropout(), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.end(self.head(x + self.drop(self.two(x.relu()))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("layers", "masks", "without_factor"),
    [
        ((nn.Dropout(), nn.Tanh(), nn.Linear(6, 6)), {}, {"2": "input"}),
        ((nn.Linear(6, 6), nn.Dropout(), nn.GELU(), nn.Linear(6, 6)), {"0": "output"}, {"0": "hidden"}),
        ((nn.Linear(6, 6), nn.GELU(), nn.Dropout(), nn.LayerNorm(6), nn.Linear(6, 6)), {}, {"0": "output"}),
        (
            (nn.Linear(6, 6), nn.ReLU(), nn.Dropout(), nn.LayerNorm(6), nn.Linear(6, 6)),
            {"0": "output"},
            {"0": "output"},
        ),
    ],
    ids=["tanh behind", "gelu behind", "gelu before a norm", "relu before a norm"],
)
@pytest.mark.filterwarnings("ignore::mrreg.NoEffectWarning")
def test_the_factor_of_what_is_kept_passes_the_nonlinearity_too(
    layers: tuple[nn.Module, ...], masks: dict[str, str], without_factor: dict[str, str]
) -> None:
    for rescale, expected in ((None, masks), (True, masks), (False, without_factor)):
        model = nn.Sequential(*copy.deepcopy(layers))
        _, report = mrreg.swap_dropout(model, 3, torch.randn(2, 6), rescale=rescale)
        assert next(iter(report.values())).masks == expected


@pytest.mark.parametrize("training", [True, False])
def test_what_a_norm_gives_is_rescaled_where_it_is_given(training: bool) -> None:
    model: Any = Normed()
    plain = copy.deepcopy(model)
    mrreg.swap_dropout(model, 3, torch.randn(4, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    for each in (model, plain):
        each.norm.train(training)
        each.drop.eval()
    x = torch.randn(8, 6)
    added = model(x) - x
    assert added.ne(0).any(0).sum() == 3
    torch.testing.assert_close(added, (plain(x) - x) * added.ne(0).any(0) * 2)


def test_dropouts_of_one_stream_do_not_hide_each_other() -> None:
    _, report = mrreg.swap_dropout(Residual(), 3, torch.randn(4, 6))
    assert (report["drop"].masks, report["head"].masks) == ({"two": "output"}, {"end": "input"})


def test_dropouts_in_a_row_are_one_group() -> None:
    layers = [nn.Linear(6, 100), nn.Dropout(0.1), nn.ReLU(), nn.Dropout(0.2), nn.Linear(100, 6)]
    model, report = mrreg.swap_dropout(nn.Sequential(*layers), 3, torch.randn(2, 6))
    assert report["1"].masks == report["3"].masks == {"0": "hidden"}
    assert report.thin is not None
    assert [group.kept for group in report.thin.groups] == [72]
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
