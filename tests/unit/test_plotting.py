"""The picture of the units that masks leave in."""

import sys
from typing import Any

import matplotlib as mpl
import pytest
import torch
from torch import nn

import mrreg

mpl.use("agg")


def net() -> Any:
    return nn.Sequential(
        mrreg.MultirateMask(nn.Linear(6, 10), p=0.5, k=4, structure="output"),
        nn.Tanh(),
        mrreg.MultirateMask(nn.Linear(10, 2), p=0.3, k=4),
    )


def drawn(model: nn.Module, **options: Any) -> list[torch.Tensor]:
    return [torch.tensor(image.get_array()) > 0 for image in mrreg.plot(model, **options).get_images()]


def thin() -> Any:
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))
    return mrreg.thin(model, p=0.5, k=4, example_inputs=torch.rand(5, 6))[0]


@pytest.mark.parametrize("build", [net, thin])
def test_it_shows_what_training_will_leave_in(build: Any) -> None:
    model = build()
    units, *entries = drawn(model, cycles=2, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model, seed=3)
    for step in range(8):
        optimizer.zero_grad()
        model(torch.rand(5, 6)).square().sum().backward()
        if step % 4 < 3:
            assert torch.equal(units[:, step], model[0].weight.grad.any(1))
            assert all(torch.equal(each[:, step], model[2].weight.grad.flatten() != 0) for each in entries)
        optimizer.step()
    assert all(each[:, [3, 7]].all() for each in (units, *entries))
    assert units.sum(0).tolist() == [5, 5, 5, 10, 5, 5, 5, 10]


def test_it_goes_on_with_the_seed_that_drives_the_masks_and_begins_where_it_is_told() -> None:
    model = net()
    whole, late = drawn(model, cycles=3, seed=3), drawn(model, cycles=1, first_cycle=2, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(whole, drawn(model), strict=True))
    assert all(torch.equal(a[:, 8:], b) for a, b in zip(whole, late, strict=True))
    assert not torch.equal(whole[0], drawn(model, seed=4)[0])


def test_it_draws_into_given_axes() -> None:
    from matplotlib import pyplot

    axes = pyplot.subplots()[1]
    assert mrreg.plot(net(), ax=axes) is axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "2.weight"]
    legend: Any = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["absent", "present", "present, joint step"]
    image = torch.tensor(axes.get_images()[0].get_array())
    assert image.eq(2).any(0).nonzero().flatten().tolist() == [3, 7, 11]  # the joint steps have a color of their own


def test_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="plot: model must be a module with masks, got 'Linear'"):
        mrreg.plot(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"plot: model must be a module with masks, got 'Linear'\. Linear is a class"):
        mrreg.plot(nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="plot: cycles must be a whole number, at least 1, got 0"):
        mrreg.plot(net(), cycles=0)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"plot needs matplotlib, .*: pip install mrreg\[plot\]$"):
        mrreg.plot(net())
