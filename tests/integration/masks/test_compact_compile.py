"""Compact masked steps under torch.compile: one graph for all draws, the numbers of the eager computation."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
import torch
from helpers.compact_oracle import gradients, masked_call, units_of
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import mrreg
from mrreg.masks import compact_forward as compact

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch 2.11's own inductor

CASES: list[tuple[str, Callable[[], nn.Module], str, tuple[int, ...], int, str]] = [
    ("input", lambda: nn.Linear(8, 6), "input", (3, 8), 8, "aot_eager"),
    ("output", lambda: nn.Conv2d(3, 8, 3), "output", (2, 3, 6, 6), 8, "aot_eager"),
    ("pair", lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), "hidden", (3, 4), 8, "inductor"),
    (
        "encoder",
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        "hidden",
        (2, 3, 4),
        8,
        "aot_eager",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "structure", "shape", "width", "backend"),
    [pytest.param(*case, backend, id=f"{name}-{backend}") for name, *case, backend in CASES],
)
def test_one_graph_for_all_draws(
    build: Callable[[], nn.Module], structure: str, shape: tuple[int, ...], width: int, backend: str
) -> None:
    torch._dynamo.reset()
    module = build()
    counter = CompileCounterWithBackend(backend)

    @torch.compile(backend=counter, fullgraph=True)
    def compiled(features: Tensor, kept: Tensor) -> Any:
        units = units_of(module, structure, kept)
        compact.should_use(module, structure, units, (features,))  # the decision, too, must be traceable
        return compact.forward(module, structure, units, (features,), {})

    for _ in range(4):
        units = units_of(module, structure, torch.randperm(width)[: width // 2].sort().values)
        kept = next(iter(units.values())).kept
        features = torch.randn(shape, requires_grad=True)
        ours = gradients(module, features, partial(compiled, features, kept))
        theirs = gradients(module, features, partial(masked_call, module, units, features))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1


def trained(model: nn.Module, shape: tuple[int, ...], compiled: Any, steps: int) -> list[Tensor]:
    """The parameters after so many steps of SGD with momentum, driven by `attach`."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    mrreg.attach(optimizer, model)
    for _ in range(steps):
        compiled(torch.randn(shape, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["hidden", "input", "output"])
def test_wrapper_has_two_graphs_and_eager_numbers(
    structure: Literal["hidden", "input", "output"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masked and joint steps make one graph each; further cycles, with other draws of units, none."""
    monkeypatch.setattr(compact, "PAYS_CPU", 0)
    torch._dynamo.reset()
    single = structure != "hidden"
    plain = nn.Linear(32, 32) if single else nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    models = [mrreg.MultirateMask(copy.deepcopy(plain), p=0.5, k=3, structure=structure) for _ in range(2)]
    counter = CompileCounterWithBackend("inductor")
    shape = (16, 32)
    ours = trained(models[0], shape, torch.compile(models[0], backend=counter, fullgraph=True), 12)
    theirs = trained(models[1], shape, models[1], 12)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 2
