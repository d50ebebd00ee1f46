"""Where units lie: each way to make and read them that thin finds, trained for a cycle as the literal loop trains."""

from functools import partial
from typing import Any

import pytest
import torch
from helpers.thin_oracle import check_training
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim import AdamW

import mrreg

OPTIMIZER = partial(AdamW, lr=0.001, eps=0.01)
Groups = dict[str, tuple[str, int]]


class Mixed(nn.Module):
    """A skip of the inputs, units that can be left out, and some whose number is written into a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(5, 12), nn.Linear(5, 8), nn.BatchNorm1d(25)
        self.last = nn.Linear(25, 3)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.one(x), F.silu(self.two(x).view(-1, 2, 4)).flatten(1)
        return self.last(self.norm(torch.cat([one.tanh(), x, two], 1)).relu())  # type: ignore[no-any-return]


class Normed(nn.Module):
    """A temporal convolutional network: weights of a length of their own, read after a shift."""

    def __init__(self, norm: Any = weight_norm) -> None:
        super().__init__()
        self.one, self.two, self.last = norm(nn.Conv1d(3, 8, 2)), norm(nn.Conv1d(8, 6, 2)), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.elu(self.two(F.elu(self.one(x)))).mean(-1))  # type: ignore[no-any-return]


class Written(nn.Module):
    """Attention and experts with weights of three dimensions, an embedding bag, and a bias that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.first = nn.EmbeddingBag(9, 10), nn.Linear(10, 6)
        self.raw = nn.Parameter(torch.randn(6))
        self.qkv = nn.ParameterList(nn.Parameter(torch.randn(6, 4, 3)) for _ in range(3))
        self.out = nn.Parameter(torch.randn(4, 3, 6))
        self.up, self.down = nn.Parameter(torch.randn(2, 6, 8)), nn.Parameter(torch.randn(2, 8, 6))

    def forward(self, ids: Tensor) -> Tensor:
        x = F.linear(F.gelu(self.bag(ids)), self.first.weight, self.first.bias + self.raw.exp()).sigmoid()
        x = x.view(2, -1, 6)
        q, k, v = (torch.einsum("bld,dhk->bhlk", x, w) for w in self.qkv)
        x = x + torch.einsum("bhlk,hkd->bld", (q @ k.mT).softmax(-1) @ v, self.out)
        return torch.bmm(torch.bmm(x, self.up).relu(), self.down)


class Recurrent(nn.Module):
    """Recurrent layers, one after another, in both directions, with what they end with."""

    def __init__(self, kind: Any = nn.LSTM, packed: bool = False, **options: Any) -> None:
        super().__init__()
        self.embed, self.rnn, self.packed = nn.Embedding(9, 5), kind(5, 8, batch_first=True, **options), packed
        both = 1 + self.rnn.bidirectional
        self.out, self.end = nn.Linear(both * (self.rnn.proj_size or 8), 3), nn.Linear(self.rnn.proj_size or 8, 3)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = F.gelu(self.embed(ids))
        if self.packed:
            ends = [4, 3, 1]
            out, end = self.rnn(nn.utils.rnn.pack_padded_sequence(x, ends, batch_first=True))
            out = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]
        else:
            out, end = self.rnn(x)
        return self.out(out), self.end(end[0] if isinstance(end, tuple) else end)


class Cells(nn.Module):
    """An encoder of cells whose state a decoder begins with."""

    def __init__(self, encoder: Any = nn.LSTMCell, decoder: Any = nn.LSTMCell) -> None:
        super().__init__()
        self.encoder, self.decoder, self.out = encoder(4, 6), decoder(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for each in x.unbind(1):
            state = self.encoder(each, state)
        for each in x.unbind(1):
            state = self.decoder(each, state)
        return self.out(state[0] if isinstance(state, tuple) else state)  # type: ignore[no-any-return]


def large(*shape: int) -> Tensor:
    return torch.randn(*shape) * 1000


MODELS: dict[str, tuple[Any, Tensor, Groups]] = {
    "mixed": (Mixed, torch.randn(6, 5), {"one": ("hidden", 12), "two": ("hidden", 8)}),
    "normed": (Normed, torch.randn(3, 3, 7), {"one": ("channels", 8), "two": ("channels", 6)}),
    "written": (
        Written,
        torch.randint(0, 9, (8, 3)),
        {"bag": ("hidden", 10), "qkv": ("heads", 4), "up": ("hidden", 8)},
    ),
    **{
        f"{name} {options}": (
            partial(Recurrent, getattr(nn, name), **options),
            torch.randint(0, 9, (3, 4)),
            {"rnn": ("hidden", 8), "embed": ("hidden", 5)},
        )
        for name, options in (
            ("LSTM", {"num_layers": 2, "bidirectional": True, "bias": False, "packed": True}),
            ("LSTM", {"proj_size": 6}),
            ("GRU", {"num_layers": 2, "bidirectional": True}),
            ("RNN", {"nonlinearity": "relu"}),
        )
    },
    **{
        f"cells of {kind.__name__}": (partial(Cells, kind, kind), torch.randn(3, 2, 4), {"encoder": ("hidden", 6)})
        for kind in (nn.LSTMCell, nn.RNNCell)
    },
    **{
        f"saturated {activation.__name__}": (
            lambda activation=activation: nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 2)),
            large(4, 6),
            {"0": ("hidden", 8)},
        )
        for activation in (nn.GELU, nn.Sigmoid)
    },
}


def found(report: Any) -> Groups:
    return {name: (entry.kind, entry.units) for name, entry in report.items() if entry.admitted}


@pytest.mark.parametrize("name", MODELS)
def test_units_are_found_and_a_cycle_equals_the_literal_loop(name: str) -> None:
    make, inputs, groups = MODELS[name]
    torch.manual_seed(0)
    report = check_training(make().double(), inputs.double() if inputs.is_floating_point() else inputs, OPTIMIZER)
    assert found(report) == groups, str(report)
    assert {name for name, entry in report.items() if entry.zeroed} == ({"two"} if name == "mixed" else set())


def test_sources_of_a_concatenation_have_shares_of_their_own() -> None:
    check_training(Mixed().double(), torch.randn(6, 5).double(), OPTIMIZER, p={"one": 0.75, "inputs": 0.4})


@pytest.mark.filterwarnings("ignore::mrreg.NoEffectWarning")
def test_a_weight_that_mixes_its_rows_is_refused_with_a_reason() -> None:
    report = mrreg.thin(Normed(spectral_norm), p=0.5, example_inputs=torch.randn(3, 3, 7))[1]
    assert not report["one"].admitted
    assert "an effect" in report["one"].reason
