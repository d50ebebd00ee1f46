"""Masks beside other libraries' mechanisms: copies, whole-model files, replicas, pruning and parametrizations."""

import copy
import pickle
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from helpers.masks import attached, held_bits, of, train_step
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel

import mrreg

OLD = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")


class Copying(nn.Linear):
    """A layer with a protocol of its own."""

    def __reduce__(self) -> Any:
        return Copying, (self.in_features, self.out_features)


def test_copies_that_the_class_makes_itself_are_masks() -> None:
    mask = mrreg.MultirateMask(Copying(3, 2), p=0.3)
    for twin in (copy.deepcopy(mask), copy.deepcopy(nn.Sequential(mask))[0], pickle.loads(pickle.dumps(mask))):
        assert of(twin).p == 0.3
        assert type(mrreg.unwrap(twin)) is Copying


@pytest.mark.parametrize("normalize", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_copies_of_a_mask_are_masks(normalize: Callable[[nn.Module], Any]) -> None:
    model = nn.Sequential(attached(normalize(nn.Linear(4, 4)))[0])
    copies: tuple[Any, ...] = copy.deepcopy(model), AveragedModel(model).module
    expected = model(torch.ones(1, 4))
    for twin in copies:
        other = torch.optim.SGD(twin.parameters(), lr=0.1)
        with mrreg.attach(other, twin):
            assert torch.equal(twin(torch.ones(1, 4)), expected)


def test_replicas_of_data_parallel_are_refused() -> None:
    mask, _optimizer = attached(nn.Linear(6, 8))
    replica: Any = mask._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match=r"nn.DataParallel copies the module.*Use DistributedDataParallel"):
        replica(torch.ones(2, 6))


def old_weight_norm() -> nn.Module:
    return torch.nn.utils.weight_norm(nn.Conv1d(8, 8, 3, groups=8))


ORIGINAL = "parametrizations.weight.original"


class Own(nn.Module):
    """A parametrization of a user's own."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, weight: Tensor) -> Tensor:
        return self.make(weight)


def _own(make: Callable[[Tensor], Tensor]) -> nn.Module:
    layer = nn.Conv1d(8, 8, 3, groups=8)
    parametrize.register_parametrization(layer, "weight", Own(make))
    return layer


NORMALIZED: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "weight norm": (
        lambda: parametrizations.weight_norm(nn.Conv1d(8, 8, 3, groups=8)),
        ["parametrizations.weight.original1"],
    ),
    "old weight norm": (old_weight_norm, ["weight_v"]),
    "spectral norm": (
        lambda: parametrizations.spectral_norm(nn.Conv1d(8, 8, 1, groups=8)),
        ["parametrizations.weight.original"],
    ),
    "rows over their norm": (lambda: _own(lambda w: w / w.norm(dim=(1, 2), keepdim=True)), [ORIGINAL]),
    "orthogonal": (
        lambda: parametrizations.orthogonal(nn.Conv1d(8, 8, 8, groups=1)),
        ["parametrizations.weight.original"],
    ),
}


@OLD
@pytest.mark.parametrize("p", [0.5, 1.0])
@pytest.mark.parametrize("case", NORMALIZED)
def test_normalized_weights_stay_finite_and_slow_entries_are_held(case: str, p: float) -> None:
    make, names = NORMALIZED[case]
    torch.manual_seed(0)
    mask = mrreg.MultirateMask(make(), p=p, k=3)
    assert [target.name for target in of(mask).targets] == names
    optimizer = torch.optim.AdamW(mask.parameters(), lr=0.01)
    mrreg.attach(optimizer, mask)
    for t in range(4):
        held = held_bits(mask, optimizer) if of(mask).masking else []
        loss = train_step(mask, optimizer, torch.randn(2, 8, 10))
        assert loss.isfinite()
        assert t % 3 == 2 or all(torch.equal(read(), bits) for read, bits in held)
    assert all(parameter.isfinite().all() for parameter in mask.parameters())


PRUNED: dict[str, Callable[[], Any]] = {
    "pruned": lambda: prune.l1_unstructured(nn.Linear(6, 6), "weight", 0.2),  # type: ignore[no-untyped-call]
    "pruned twice": lambda: prune.random_unstructured(PRUNED["pruned"](), "weight", 0.2),  # type: ignore[no-untyped-call]
    "weight norm": lambda: torch.nn.utils.weight_norm(nn.Linear(6, 6)),
    "spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(6, 6)),
}


@OLD
@pytest.mark.parametrize(("case", "how"), [*zip(PRUNED, cycle(["unwrap", "remove"]))])
def test_nothing_masked_stays_in_attributes(case: str, how: str) -> None:
    net: Any = mrreg.mask(nn.Sequential(PRUNED[case](), nn.Tanh()), {"0": 0.5}, k=5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    handle = mrreg.attach(optimizer, net)
    for _ in range(7):
        train_step(net, optimizer, torch.randn(5, 6))
    if how == "remove":
        handle.remove()
    layer = net[0]
    if how == "unwrap":
        mrreg.unwrap(net)
    found, training = layer.weight.detach().clone(), layer.training
    layer.eval()(torch.zeros(1, 6))  # computes the weight again
    assert torch.equal(found, layer.weight)
    assert training
