"""Laws of `split` for any model and any choice."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import mrreg

NAMES = ("a", "b", "stem", "fc", "module", "bias")


@st.composite
def models(draw: st.DrawFn) -> nn.Module:
    """Trees of linear layers with some weights tied."""
    layers = [nn.Linear(2, 2, bias=draw(st.booleans())) for _ in range(draw(st.integers(2, 5)))]
    for layer in layers[1:]:
        if draw(st.booleans()):
            layer.weight = layers[0].weight
    tree: nn.Module = nn.ModuleDict({draw(st.sampled_from(NAMES)): layers[0]})
    for layer in layers[1:]:
        tree = nn.ModuleDict({"inner": tree, draw(st.sampled_from(NAMES)): layer})
    return tree


def chosen(groups: Iterable[dict[str, Any]], period: int | None) -> list[Tensor]:
    return [p for group in groups if group["period"] == period for p in group["params"]]


@given(models(), st.data())
def test_every_parameter_lands_in_exactly_one_part(model: nn.Module, data: st.DataObject) -> None:
    parameters = list(model.parameters())
    if len(parameters) < 2:
        return
    count = data.draw(st.integers(1, len(parameters) - 1))
    wanted = data.draw(st.permutations(parameters))[:count]
    fast = chosen(mrreg.split(model, fast=wanted), 1)
    slow = chosen(mrreg.split(model, fast=wanted), None)
    assert {id(p) for p in fast} == {id(p) for p in wanted}
    assert sorted(map(id, fast + slow)) == sorted(map(id, parameters))
    assert [p for p in parameters if any(p is f for f in fast)] == fast


@given(models(), st.data())
def test_names_and_objects_choose_alike(model: nn.Module, data: st.DataObject) -> None:
    named = dict(model.named_parameters())
    if len(named) < 2:
        return
    names = data.draw(st.lists(st.sampled_from(sorted(named)), min_size=1, max_size=len(named) - 1, unique=True))
    by_name = mrreg.split(model, slow=names)
    by_object = mrreg.split(model, slow=[named[name] for name in names])
    by_predicate = mrreg.split([{"params": named.items()}], slow=lambda name, p: any(p is named[n] for n in names))
    assert by_name == by_object == by_predicate


@given(models(), st.data())
def test_splitting_groups_again_by_period_changes_nothing(model: nn.Module, data: st.DataObject) -> None:
    named = dict(model.named_parameters())
    if len(named) < 2:
        return
    once = mrreg.split(model, fast=named[data.draw(st.sampled_from(sorted(named)))])
    assert mrreg.split(once, fast=chosen(once, 1)) == once
    assert mrreg.split(once, slow=chosen(once, None)) == once
