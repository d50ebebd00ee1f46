from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrreg.masks.groups import AttributeOverride, Slot, UnitGroup
from mrreg.thinning.admission import Admission, admit
from mrreg.thinning.build import find_groups
from mrreg.thinning.double_copy import double_copy, probing, read_inputs


def network() -> nn.Sequential:
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)]
    return nn.Sequential(*layers)


X = torch.randn(5, 4)


def attempt(model: nn.Module, groups: list[UnitGroup]) -> Admission:
    twin = double_copy(model)
    with probing(twin):
        return admit(twin, read_inputs(X), groups, lambda _: None)


def half(model: nn.Module) -> list[UnitGroup]:
    return [replace(group, kept=group.units // 2) for group in find_groups(model, X) if group.kind != "inputs"]


def test_groups_that_fit_the_code_are_admitted_all_at_once() -> None:
    model = network()
    result = attempt(model, half(model))
    assert [group.name for group in result.groups] == ["0", "4"]
    assert result.reasons == {}


def test_a_producer_that_something_else_reads_is_refused() -> None:
    model = network()
    first, second = half(model)
    made = [replace(slot, indices=slot.indices[:6]) for slot in first.slots[:-1]]
    wrong = replace(first, slots=(*made, second.slots[-1]), units=6, kept=3)  # reads what another layer makes
    result = attempt(model, [wrong])
    assert "units that nothing should read have an effect: the output differs by" in result.reasons["0"]


def test_a_group_with_a_missing_member_is_zeroed_with_the_error_that_it_gives() -> None:
    model = network()
    first, second = half(model)
    wrong = replace(first, slots=tuple(slot for slot in first.slots if not slot.name.startswith("1.")))
    result = attempt(model, [wrong, second])
    assert [(group.name, group.zeroed) for group in result.groups] == [("0", True), ("4", False)]
    assert result.reasons["0"].startswith("RuntimeError: ")


class Sized(nn.Module):
    """A network whose code names its sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.width, self.other = nn.Linear(4, 8), nn.Linear(8, 2), 8, 8

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).view(-1, self.width))  # type: ignore[no-any-return]


def test_the_fewest_attributes_are_overridden_and_stay_as_they_are() -> None:
    model = Sized()
    result = attempt(model, half(model))
    assert result.overrides == {"up": [AttributeOverride("", "width", 4)]}
    assert model.width == 8
    assert vars(result.trial.twin)["width"] == 8


class Literal(Sized):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).view(-1, 8))  # type: ignore[no-any-return]


def test_a_size_that_no_attribute_holds_is_a_reason() -> None:
    model = Literal()
    assert "RuntimeError: " in attempt(model, half(model)).reasons["up"]


class Statistics(nn.Module):
    """A network that in training computes something of all its units: only a trial in training mode shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.up(x))
        return self.down(hidden - hidden.mean() if self.training else hidden)  # type: ignore[no-any-return]


def test_training_mode_is_tried_too() -> None:
    model = Statistics()
    assert attempt(model, half(model)).reasons["up"].endswith("in training mode")


class Rivals(nn.Module):
    """Two hidden layers of which one alone can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.one(x))
        two = F.relu(self.two(one))
        if one.shape[1] < 8 and two.shape[1] < 8:
            raise ValueError("one of us is too many")
        return self.last(two)  # type: ignore[no-any-return]


def test_groups_that_do_not_go_together_are_taken_in_order() -> None:
    model = Rivals()
    result = attempt(model, half(model))
    assert [(group.name, group.zeroed) for group in result.groups] == [("one", False), ("two", True)]
    assert result.reasons == {"two": "not along with the others: ValueError: one of us is too many"}


@pytest.mark.parametrize("kept", [1, 3, 7])
def test_any_number_of_units_may_stay(kept: int) -> None:
    model = network()
    groups = [replace(group, kept=min(kept, group.units - 1)) for group in half(model)]
    assert len(attempt(model, groups).groups) == 2


def test_indices_are_those_of_the_units_that_stay() -> None:
    model = network()
    first = half(model)[0]
    assert isinstance(first.slots[0], Slot)
    result = attempt(model, [first])
    with result.trial.left_out([first]):
        assert {name: tuple(p.shape) for name, p in result.trial.twin.named_parameters()}["0.weight"] == (4, 4)
    assert result.trial.twin[0].weight.shape == (8, 4)  # type: ignore[index]
