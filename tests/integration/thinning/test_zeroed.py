"""Units that the code of a model does not let be left out: they are computed, and columns that read them are zero."""

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from helpers.thin import mask_of
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


def thin_net(alibi: bool = False) -> tuple[Any, mrreg.ThinReport]:
    torch.manual_seed(0)
    return mrreg.thin(Net(alibi).double(), p=0.5, k=K, example_inputs=IDS)


def literal(model: nn.Module) -> nn.Module:
    """The plain model, in which the columns that read absent units are zero and the others count twice."""
    mask, plain = mask_of(model), mrreg.unwrap(copy.deepcopy(model))
    tensors: Any = mask.tensors
    for group in mask.groups if mask.masking else ():
        for slot in group.slots:
            if slot.role == "consumer":
                p, kept = plain.get_parameter(slot.name).data, tensors[slot.name].kept[slot.dim]
                columns = p.index_select(slot.dim, kept) * (group.units / group.kept)
                p.zero_().index_copy_(slot.dim, kept, columns)
    return plain


def absent(model: nn.Module) -> dict[str, tuple[int, Tensor]]:
    """Along which dimension, and where, entries of the attention are absent."""
    tensors: Any = mask_of(model).tensors
    found = {}
    for name, tensor in tensors.items():
        for dim, kept in tensor.kept.items() if "attention" in name else ():
            present = torch.zeros(model.get_parameter(name).shape[dim], dtype=torch.bool)
            present[kept] = True
            found[name] = dim, (~present).nonzero().flatten()
    return found


@pytest.mark.parametrize("alibi", [False, True])
def test_heads_that_cannot_be_left_out_are_zeroed(alibi: bool) -> None:
    model, report = thin_net(alibi)
    entry = report["attention.c_attn"]
    assert (entry.kind, entry.units, entry.kept, entry.admitted, entry.zeroed) == ("heads", 4, 2, True, True)
    assert entry.reason.startswith("test_zeroed.py:")
    assert f"computed all the same, since {entry.reason}" in report.summary()
    assert not report["up"].zeroed
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    mrreg.attach(optimizer, model)
    for _ in range(3 * K):
        torch.testing.assert_close(out := model(IDS), literal(model)(IDS), rtol=1e-9, atol=1e-9)
        held, masking = absent(model), mask_of(model).masking
        before = {name: model.get_parameter(name).detach().clone() for name in held}
        F.cross_entropy(out.flatten(0, 1), IDS.flatten()).backward()  # type: ignore[no-untyped-call]
        if masking:
            for name, (dim, where) in held.items():
                grad = model.get_parameter(name).grad
                assert grad is not None
                assert not grad.index_select(dim, where).any()
        optimizer.step()
        optimizer.zero_grad()
        for name, (dim, where) in held.items():
            now = model.get_parameter(name).detach()
            same = torch.equal(now.index_select(dim, where), before[name].index_select(dim, where))
            assert same == masking, name
            assert not torch.equal(now, before[name])


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
            found += [each(IDS), torch.compile(each, backend="aot_eager")(IDS)]
    for one in found[1:]:
        torch.testing.assert_close(one, found[0])
