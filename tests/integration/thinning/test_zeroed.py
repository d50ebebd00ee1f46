"""Units that the code of a model does not let be left out: they are computed, and columns that read them are zero."""

import copy
import io
import math
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from helpers.thin_oracle import check_training
from torch import Tensor, nn
from torch.nn import functional as F

import mrreg

K = 4
IDS = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """nanoGPT's: the width is an attribute, and the number of heads divides what the input has."""

    def __init__(self, width: int, heads: int, alibi: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.n_embd = heads, width
        self.slopes = [2.0**-i for i in range(heads)] if alibi else None

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        each = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2) for t in each)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        if self.slopes is not None:
            far = torch.arange(length) - torch.arange(length)[:, None]
            scores = scores + far * torch.tensor(self.slopes)[:, None, None]
        y = scores.softmax(-1) @ v
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return self.c_proj(y)  # type: ignore[no-any-return]


class Net(nn.Module):
    """One block with what is around it."""

    def __init__(self, alibi: bool = False) -> None:
        super().__init__()
        self.embed, self.norm, self.attention = nn.Embedding(11, 16), nn.LayerNorm(16), Attention(16, 4, alibi)
        self.up, self.down, self.out = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 11)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.attention(self.norm(x))
        return self.out(x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]


def thin_net() -> tuple[Any, mrreg.ThinReport]:
    torch.manual_seed(0)
    return mrreg.thin(Net().double(), p=0.5, k=K, example_inputs=IDS)


@pytest.mark.parametrize("alibi", [False, True])
def test_heads_that_cannot_be_left_out_are_zeroed(alibi: bool) -> None:
    torch.manual_seed(0)
    report = check_training(Net(alibi).double(), IDS, partial(torch.optim.AdamW, lr=0.001, eps=0.01), K)
    entry = report["attention.c_attn"]
    assert (entry.kind, entry.units, entry.kept, entry.admitted, entry.zeroed) == ("heads", 4, 2, True, True)
    assert entry.reason.startswith("test_zeroed.py:")
    assert f"computed all the same, since {entry.reason}" in report.summary()
    assert not report["up"].zeroed


def test_copies_pickles_plans_and_compiled_forwards_zero_the_same() -> None:
    model, report = thin_net()
    file = io.BytesIO()
    report.save(file)  # type: ignore[arg-type]
    file.seek(0)
    torch.manual_seed(0)
    again, _ = mrreg.thin(Net().double(), k=K, plan=mrreg.ThinReport.load(file))  # type: ignore[arg-type]
    found = []
    for each in (model, again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        with mrreg.attach(optimizer, each):
            compiled: Any = torch.compile(each, backend="aot_eager") if each is model else each
            found += [each(IDS), compiled(IDS)]
    for one in found[1:]:
        torch.testing.assert_close(one, found[0])
