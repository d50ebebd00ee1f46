"""docs/design.md names files that exist, and every key that mrreg saves, beside the file that writes it."""

import copy
import re
from typing import Any

import pytest
import torch
from helpers.documents import ROOT
from torch import nn

import mrreg

PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
KEYS = dict(re.findall(r"^\| `(\w+)` \| `(mrreg/[\w/]+\.py)` \|", PAGE, re.MULTILINE))
FILES = sorted(set(re.findall(r"`(mrreg/[\w/.]+)`", PAGE)))


@pytest.mark.parametrize("path", FILES)
def test_file_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("key", KEYS)
def test_key_is_in_its_file(key: str) -> None:
    assert f'"{key}"' in (ROOT / KEYS[key]).read_text(encoding="utf-8")


def _keys(optimizer: torch.optim.Optimizer) -> set[str]:
    saved: dict[str, Any] = optimizer.state_dict()
    return {key for entry in [*saved["param_groups"], *saved["state"].values()] for key in entry}


def _step(optimizer: torch.optim.Optimizer, without: torch.Tensor | None = None) -> None:
    for p in [p for group in optimizer.param_groups for p in group["params"]]:
        p.grad = None if p is without else torch.zeros_like(p)
    optimizer.step()


def _bases(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        torch.optim.Adam(model[1].parameters(), lr=0.1),
        mrreg.LangevinSGD(model[2].parameters(), lr=0.1, momentum=0.9, temperature=0.1),
    ]


@pytest.mark.filterwarnings("ignore::mrreg.errors.NoEffectWarning")
def test_the_tables_name_every_saved_key() -> None:
    model = nn.Sequential(mrreg.MultirateMask(nn.Linear(2, 2)), nn.BatchNorm1d(2), nn.Linear(2, 2))
    torchs = set()
    for base in _bases(copy.deepcopy(model)):
        _step(base)
        torchs |= _keys(base)
    bases = _bases(model)
    optimizer = mrreg.Multirate(zip(bases, (1, 2, 2), strict=True), gradient=["sync", "sync", "sum"], model=model)
    mrreg.batch_norm(optimizer, model, "sync")
    mrreg.attach(optimizer, model)
    for without in (None, model.get_parameter("1.bias")):  # which has a direction, then no gradient: it rests
        _step(optimizer, without)
        _step(optimizer)
    thin, _ = mrreg.thin(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)), 0.5, 5, torch.randn(2, 2))
    thinned = torch.optim.SGD(thin.parameters(), lr=0.1)
    mrreg.attach(thinned, thin)
    noise = {"noise_seed", "noise_steps", "noise_stream"}  # of LangevinSGD, one of the bases
    assert (_keys(optimizer) | _keys(thinned)) - torchs | noise == set(KEYS)
