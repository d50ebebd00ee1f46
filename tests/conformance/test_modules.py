"""Every module for which torch's own tests have inputs, masked: what MultirateMask takes behaves like the module."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.masks import of, slow_entries
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.testing._internal.common_modules import module_db

import mrreg
from mrreg.module_utils import tensors_in

K = 3
INFOS: dict[str, Any] = {info.name: info for info in module_db}
NAMES = [
    "nn.Linear",
    "nn.Bilinear",
    "nn.Conv1d",
    "nn.Conv2d",
    "nn.Conv3d",
    "nn.ConvTranspose1d",
    "nn.ConvTranspose2d",
    "nn.ConvTranspose3d",
    "nn.Embedding",
    "nn.RNN",
    "nn.GRU",
    "nn.LSTM",
    "nn.RNNCell",
    "nn.GRUCell",
    "nn.LSTMCell",
    "nn.MultiheadAttention",
    "nn.TransformerEncoderLayer",
    "nn.TransformerDecoderLayer",
]
# Not here: modules without a weight to mask and lazy ones, which are refused, and nn.Transformer, made of those above.
MOST = 3  # of the up to hundreds of inputs that torch has for one module
by_name = pytest.mark.parametrize("name", NAMES)
pytestmark = [
    pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


def inputs(name: str) -> Iterator[tuple[Any, Any]]:
    """The class, and some of the inputs of torch's tests."""
    info = INFOS[name]
    found = info.module_inputs_func(info, "cpu", torch.float32, requires_grad=False, training=True)
    found = [each for each in found if each.forward_input is not None]
    for each in found[:: -(-len(found) // MOST)]:
        yield info.module_cls, each


def built(kind: Any, given: Any) -> tuple[nn.Module, mrreg.MultirateMask, torch.optim.Optimizer]:
    """The module, the same one masked, and what drives the mask."""
    plain: nn.Module = kind(*given.constructor_input.args, **given.constructor_input.kwargs)
    for module in plain.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    mask = mrreg.MultirateMask(copy.deepcopy(plain), p=0.5, k=K)
    optimizer = torch.optim.AdamW(mask.parameters(), lr=0.01)
    mrreg.attach(optimizer, mask)
    return plain, mask, optimizer


def run(module: nn.Module, given: Any, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The tensors of one forward on torch's input."""
    args, kwargs = copy.deepcopy((given.forward_input.args, given.forward_input.kwargs))
    args, kwargs = cast(args, dtype), cast(kwargs, dtype)
    return list(tensors_in(module(*args, **kwargs)))


def cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, PackedSequence):
        return value.to(dtype)
    if isinstance(value, dict):
        return {key: cast(each, dtype) for key, each in value.items()}
    return type(value)(cast(each, dtype) for each in value) if isinstance(value, tuple | list) else value


def zeroed(plain: nn.Module, mask: mrreg.MultirateMask) -> nn.Module:
    """The plain module with the slow entries at zero."""
    twin = copy.deepcopy(plain)
    with torch.no_grad():
        for target, (_, slow) in zip(of(mask).targets, slow_entries(mask), strict=True):
            twin.get_parameter(target.name)[slow] = 0
    return twin


def close(one: list[Tensor], two: list[Tensor]) -> None:
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@by_name
def test_forward(name: str) -> None:
    """In training the module with its slow weights at zero, in evaluation the module; after a cast, and copied, too."""
    for kind, given in inputs(name):
        plain, mask, _ = built(kind, given)
        for dtype in (torch.float32, torch.float64):
            plain.train().to(dtype), mask.train().to(dtype)
            close(run(mask, given, dtype), run(zeroed(plain, mask), given, dtype))
            assert all(torch.equal(p, q) for p, q in zip(mask.parameters(), plain.parameters(), strict=True))
            close(run(mask.eval(), given, dtype), run(plain.eval(), given, dtype))
        mask.load_state_dict(plain.state_dict())
        assert list(mask.state_dict()) == list(plain.state_dict())
        for twin in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
            close(run(twin, given, dtype), run(plain, given, dtype))
        assert str(mrreg.unwrap(mask)) == str(plain)


@by_name
def test_a_cycle_of_training(name: str) -> None:
    """Slow entries rest for k - 1 steps, and every masked weight has a gradient and moves."""
    for kind, given in inputs(name):
        _, mask, optimizer = built(kind, given)
        before = [(p, slow, p.detach().clone()) for p, slow in slow_entries(mask)]
        for t in range(K):
            optimizer.zero_grad()
            outputs = [each.float() for each in run(mask, given) if each.is_floating_point()]
            torch.autograd.backward([each.square().sum() for each in outputs if each.requires_grad])
            optimizer.step()
            assert t == K - 1 or all(torch.equal(p[slow], old[slow]) for p, slow, old in before)
        assert not any(torch.equal(p, old) for p, _, old in before)
