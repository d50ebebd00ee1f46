from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrreg.masks.groups import AttributeOverride
from mrreg.thinning.grouping import find
from mrreg.thinning.paths import find_paths
from mrreg.thinning.report import ThinEntry
from mrreg.thinning.trial import admit
from mrreg.thinning.twin import double_copy, probing, randomize, read_inputs


def network() -> nn.Sequential:
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)]
    return nn.Sequential(*layers)


X = torch.randn(5, 4)


def attempt(model: nn.Module, groups: list[ThinEntry]) -> tuple[dict[str, str], list[AttributeOverride]]:
    """Outcomes, each with the reason, and what is overridden."""
    twin = double_copy(model)
    with probing(twin):
        randomize(twin)
        entries, overrides = admit(twin, read_inputs(X), groups, find_paths(twin, read_inputs(X))[0])
    return {each.name: f"{each.outcome} {each.reason}".strip() for each in entries}, overrides


def half(model: nn.Module) -> list[ThinEntry]:
    twin = double_copy(model)
    with probing(twin):
        groups = [group for group in find(twin, read_inputs(X)) if not group.reason and group.kind != "inputs"]
    return [replace(group, kept=group.units // 2) for group in groups]


def test_groups_that_fit_the_code_are_admitted_all_at_once() -> None:
    model = network()
    assert attempt(model, half(model)) == ({"0": "left out", "4": "left out"}, [])


def test_a_group_with_a_missing_member_is_zeroed_with_the_error_that_it_gives() -> None:
    model = network()
    first, second = half(model)
    wrong = replace(first, slots=tuple(slot for slot in first.slots if not slot.name.startswith("1.")))
    found = attempt(model, [wrong, second])[0]
    assert found["0"].startswith("zeroed RuntimeError: ")
    assert found["4"] == "left out"


class Sized(nn.Module):
    """A network whose code names its sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.width, self.other = nn.Linear(4, 8), nn.Linear(8, 2), 8, 8

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).view(-1, self.width))  # type: ignore[no-any-return]


def test_the_fewest_attributes_are_overridden_and_stay_as_they_are() -> None:
    model = Sized()
    assert attempt(model, half(model))[1] == [AttributeOverride("", "width", 4)]
    assert model.width == 8


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
    found = attempt(model, half(model))[0]
    assert found["one"] == "left out"
    assert found["two"].startswith("zeroed test_trial.py:")
    assert found["two"].endswith(
        ' fails, `raise ValueError("one of us is too many")` (ValueError: one of us is too many)'
    )


class Numbered(Sized):
    """Scales units by their number among those that are there, so that some subsets agree by luck."""

    def __init__(self, scales: list[float]) -> None:
        super().__init__()
        self.scales = torch.tensor(scales)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.up(x))
        return self.down(hidden * self.scales[: hidden.shape[1]])  # type: ignore[no-any-return]


@pytest.mark.parametrize("scales", [[1.0] * 7 + [2.0], [2.0] + [1.0] * 7])
def test_units_that_depend_on_their_number_are_not_left_out(scales: list[float]) -> None:
    model = Numbered(scales)
    assert attempt(model, half(model))[0]["up"].startswith("zeroed")


class Listed(Sized):
    """Reads its weights from a list of parameters, where no mask can show others."""

    def forward(self, x: Tensor) -> Tensor:
        weights = dict(self.named_parameters())
        hidden = F.relu(F.linear(x, weights["up.weight"], weights["up.bias"]))
        return F.linear(hidden, weights["down.weight"], weights["down.bias"])


def test_weights_that_are_not_read_by_name_are_refused() -> None:
    model = Listed()
    assert attempt(model, half(model))[0]["up"].startswith("whole the output differs by")


def chain(depth: int) -> nn.Module:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.lin, self.gate = 4, nn.Linear(16, 16), nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            z = self.lin(x).view(len(x), self.heads, 4)
            return (z * (z * self.gate).sum(-1, keepdim=True).softmax(0)).flatten(1)  # type: ignore[no-any-return]

    return nn.Sequential(nn.Linear(4, 16), *(Heads() for _ in range(depth)), nn.Linear(16, 2))


@pytest.mark.parametrize("depth", [1, 3])
def test_of_layers_in_a_row_only_the_one_that_loses_units_is_overridden(depth: int) -> None:
    model = chain(depth)
    found, overrides = attempt(model, [group for group in half(model) if group.kind == "heads"])
    assert set(found.values()) == {"left out"}
    assert overrides == [AttributeOverride(str(i), "heads", 2) for i in range(1, depth + 1)]


class Shared(nn.Module):
    """Grouped queries: with constants, or with sizes in a list."""

    def __init__(self, sizes: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.sizes = 4, 2, [16, 8, 8] if sizes else None
        self.qkv, self.out = nn.Linear(4, 32), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x[None]
        parts = self.qkv(x)
        if self.sizes is None:
            q, k, v = parts.split([4 * self.heads, 4 * self.shared, 4 * self.shared], -1)
            shapes = (self.heads, 4), (self.shared, 4), (self.shared, 4)
        else:
            q, k, v = parts.split(self.sizes, -1)
            shapes = (-1, 4), (-1, 4), (-1, 4)
        q, k, v = (y.unflatten(-1, shape).transpose(1, 2) for y, shape in zip((q, k, v), shapes, strict=True))
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("sizes", [False, True])
def test_counts_that_are_multiples_or_stand_in_lists_are_overridden(sizes: bool) -> None:
    model = Shared(sizes)
    found, overrides = attempt(model, half(model))
    assert found == {"qkv": "left out"}
    expected = [("sizes", [8, 4, 4])] if sizes else [("heads", 2), ("shared", 1)]
    assert [(each.attribute, each.value) for each in overrides] == expected
