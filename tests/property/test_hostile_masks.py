"""Whatever layer, precision, layout, share, cycle, gradient and optimizer: the laws of masks hold."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import attached, bits, held_bits, of, slow_entries
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import mrreg
from mrreg.masks.entries import as_bits

Layer = tuple[Callable[[], nn.Module], tuple[int, ...]]
LAYERS: list[Layer] = [
    (lambda: nn.Linear(5, 3), (4, 5)),
    (lambda: nn.Linear(5, 1, bias=False), (5,)),
    (lambda: nn.Conv1d(4, 6, 3), (2, 4, 5)),
    (lambda: nn.Conv2d(3, 4, (3, 2)), (2, 3, 5, 5)),
    (lambda: nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last), (1, 3, 4, 4)),
    (lambda: nn.ConvTranspose2d(3, 4, 2), (1, 3, 4, 4)),
    (lambda: transposed(nn.Linear(6, 4)), (3, 6)),
    (lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)), (4, 5)),
]
OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    lambda p: torch.optim.Adagrad(p, lr=0.1),
    lambda p: torch.optim.NAdam(p, lr=0.01, weight_decay=0.1),
    lambda p: mrreg.LangevinSGD(p, lr=0.01, momentum=0.5, temperature=0.1),
    lambda p: mrreg.MultirateAdamW(p, lr=0.01, k=1),
]
WORDS = ["same"] * 5 + ["zero", "nan", "inf", "none", "nan input"]

layers = st.sampled_from(LAYERS)
optimizers = st.sampled_from(OPTIMIZERS)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
structures: Any = st.sampled_from(["weight", "input", "output"])
shares = st.sampled_from([0.0, 0.2, 0.7, 1.0])
boosts = st.sampled_from([None, 0, 1, 0.5, 7])
words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5)


def transposed(layer: nn.Linear) -> nn.Linear:
    """A weight that is not contiguous."""
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return layer


def batch(shape: tuple[int, ...], t: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(t)).to(dtype)


def spoil(module: nn.Module, word: str) -> None:
    """What may happen to gradients between backward and step."""
    for p in module.parameters():
        if p.grad is not None and word == "none":
            p.grad = None
        elif p.grad is not None:
            p.grad.mul_(word != "zero")
            if word in ("nan", "inf"):
                p.grad[(0,) * p.dim()] = float(word)


@settings(max_examples=30)
@given(layers, optimizers, dtypes, structures, shares, boosts, st.integers(1, 3), words)
def test_masked_and_joint_steps(
    layer: Layer,
    make: Callable[[Any], torch.optim.Optimizer],
    dtype: torch.dtype,
    structure: Any,
    p: float,
    boost: float | None,
    k: int,
    events: list[str],
) -> None:
    build, shape = layer
    torch.manual_seed(k)
    mask = mrreg.MultirateMask(build().to(dtype), p=p, k=k, structure=structure, boost=boost)
    optimizer = make(mask.parameters())
    mrreg.attach(optimizer, mask)
    for t, event in enumerate(events):
        clock = optimizer.param_groups[0]["mask_clock"]
        masking = p > 0 and clock % k < k - 1
        assert of(mask).masking == masking
        optimizer.zero_grad()
        x = batch(shape, t, dtype)
        x.view(-1)[0] = float("nan") if event == "nan input" else 0.5
        mask(x).square().mean().backward()
        slow = dict(slow_entries(mask)) if bits(mask) else {}
        for weight, entries in slow.items() if masking else ():
            assert weight.grad is not None
            assert not as_bits(weight.grad)[entries].any()
        spoil(mask, event)
        held = held_bits(mask, optimizer) if masking else []
        before = [q.detach().clone() for q in mask.parameters()]
        twins = stepped(mask, optimizer, make)
        optimizer.step()
        assert all(torch.equal(read(), bits) for read, bits in held)
        assert optimizer.param_groups[0]["mask_clock"] == clock + (event != "none")
        if event == "none":
            assert all(
                torch.equal(as_bits(q.detach()), as_bits(old)) for q, old in zip(mask.parameters(), before, strict=True)
            )
        elif not masking:
            for q, twin, old in zip(mask.parameters(), twins, before, strict=True):
                entries = slow.get(q, torch.zeros_like(q, dtype=torch.bool))
                assert torch.equal(as_bits(q.detach())[~entries], as_bits(twin.detach())[~entries])
                expected = old + of(mask).boost * (twin.detach() - old)
                close(q.detach()[entries], expected[entries])


def close(a: Tensor, b: Tensor) -> None:
    """Where the step left numbers; boosted infinities are none."""
    finite = a.isfinite() & b.isfinite()
    tolerance = 0.05 if a.dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(a[finite], b[finite], rtol=tolerance, atol=tolerance)
    assert not (a.isfinite() ^ b.isfinite()).any()


def stepped(
    mask: mrreg.MultirateMask, optimizer: torch.optim.Optimizer, make: Callable[[Any], torch.optim.Optimizer]
) -> list[nn.Parameter]:
    """What the optimizer alone makes of the same parameters, gradients and state."""
    twins = []
    for q in mask.parameters():
        twin = nn.Parameter(q.detach().clone(memory_format=torch.preserve_format))
        twin.grad = None if q.grad is None else q.grad.clone()
        twins.append(twin)
    alone = make(twins)
    for q, twin in zip(
        mask.parameters(), twins, strict=True
    ):  # loading would cast: torch's own NAdam is not exact then
        if q in optimizer.state:
            alone.state[twin] |= copy.deepcopy(optimizer.state[q])
    for group, mine in zip(alone.param_groups, optimizer.param_groups, strict=True):
        group |= {key: value for key, value in mine.items() if key != "params"}
    alone.step()
    return twins


@settings(max_examples=25)
@given(layers, dtypes, structures, shares, st.booleans(), st.integers(0, 4))
def test_the_forward_is_that_of_the_zeroed_module(
    layer: Layer, dtype: torch.dtype, structure: Any, p: float, rescale: bool, steps: int
) -> None:
    """Slow entries count as zero whatever they are, and evaluation uses all of them."""
    build, shape = layer
    torch.manual_seed(0)
    mask = mrreg.MultirateMask(build().to(dtype), p=p, k=3, structure=structure, rescale=rescale)
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.01)
    mrreg.attach(optimizer, mask)
    for t in range(steps):
        optimizer.zero_grad()
        mask(batch(shape, t, dtype)).sum().backward()
        optimizer.step()
    plain = mrreg.unwrap(copy.deepcopy(mask))
    x = batch(shape, 9, dtype)
    torch.testing.assert_close(mask.eval()(x), plain(x), rtol=0, atol=0)
    mask.train()
    if not of(mask).masking:
        return
    with torch.no_grad():
        for target, (weight, slow) in zip(of(mask).targets, slow_entries(mask), strict=True):
            twin = plain.get_parameter(target.name)
            weight[slow] = float("nan")
            twin.mul_(of(mask).tensors[target.name].scale)[slow] = 0
    tolerance = 0.1 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(mask(x), plain(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("to", "when"), [(torch.float64, 1), (torch.bfloat16, 2), (torch.float16, 3)])
def test_a_cast_in_mid_cycle(to: torch.dtype, when: int) -> None:
    mask = mrreg.MultirateMask(nn.Linear(5, 3), p=0.5, k=3)
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.1, weight_decay=0.1)
    mrreg.attach(optimizer, mask)
    for t in range(7):
        if t == when:
            mask.to(to)
        held = held_bits(mask, optimizer) if of(mask).masking else []
        optimizer.zero_grad()
        mask(batch((4, 5), t, mask.weight.dtype)).sum().backward()
        optimizer.step()
        assert all(torch.equal(read(), bits) for read, bits in held)


@settings(max_examples=10)
@given(shares, structures, st.integers(0, 2))
def test_the_slow_subset_is_a_function_of_seed_position_and_cycle(p: float, structure: Any, cycle: int) -> None:
    drawn = []
    for state in (1, 2):
        torch.manual_seed(state)
        mask, optimizer = attached(nn.Linear(5, 3), p=p, k=2, structure=structure)
        for t in range(2 * cycle):
            optimizer.zero_grad()
            mask(batch((4, 5), t, torch.float32)).sum().backward()
            optimizer.step()
        drawn.append([slow for _, slow in slow_entries(mask)] if p else [])
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))
