"""Small networks of our own: what belongs together, and what is no group."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrreg.thinning.grouping import find
from mrreg.thinning.report import ThinEntry
from mrreg.thinning.twin import double_copy, probing, read_inputs


def look(model: nn.Module, *inputs: Tensor) -> tuple[dict[str, ThinEntry], dict[str, ThinEntry]]:
    """Groups, and what is none."""
    twin = double_copy(model)
    with probing(twin):
        found = find(twin, read_inputs(inputs))
    groups, refused = ({each.name: each for each in found if bool(each.reason) == no} for no in (False, True))
    return groups, refused


def roles(group: ThinEntry) -> dict[str, str]:
    return {f"{slot.name}[{slot.dim}]": slot.role for slot in group.slots}


class Net(nn.Module):
    """A first and a last layer around what a test is about."""

    def __init__(self, width: int = 8, out: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(out, 3)

    def between(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))  # type: ignore[no-any-return]


X = torch.randn(5, 4)


def test_a_hidden_layer_is_a_group_and_the_inputs_are_one() -> None:
    groups, refusals = look(Net(), X)
    assert groups["first"].kind == "hidden"
    assert roles(groups["first"]) == {
        "first.weight[0]": "producer",
        "first.bias[0]": "member",
        "last.weight[1]": "consumer",
    }
    assert groups["first.weight[1]"].kind == "inputs"
    assert roles(groups["first.weight[1]"]) == {"first.weight[1]": "consumer"}
    assert refusals["last"].reason == "they reach the model's output"


def test_a_gate_of_one_weight_has_two_rows_for_each_unit() -> None:
    class Gated(Net):
        def __init__(self) -> None:
            super().__init__(out=4)

        def between(self, x: Tensor) -> Tensor:
            gate, value = x.chunk(2, -1)
            return F.silu(gate) * value

    group = look(Gated(), X)[0]["first"]
    assert (group.kind, group.units) == ("hidden", 4)
    assert group.slots[0].indices.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_every_tensor_with_a_position_for_each_unit_is_a_member() -> None:
    class Members(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.prelu = nn.BatchNorm1d(8), nn.PReLU(8)
            self.scale = nn.Parameter(torch.zeros(8))
            self.table = nn.Parameter(torch.zeros(6, 8))  # only the second dimension counts units
            self.shift: Tensor
            self.register_buffer("shift", torch.zeros(8, 1))

        def between(self, x: Tensor) -> Tensor:
            scaled: Tensor = self.prelu(self.norm(x)) * self.scale
            return scaled + self.table[:5].sin() + self.shift.squeeze(1)

    names = {name for name, role in roles(look(Members(), X)[0]["first"]).items() if role == "member"}
    norm = {f"norm.{name}[0]" for name in ("weight", "bias", "running_mean", "running_var")}
    assert names == norm | {"first.bias[0]", "prelu.weight[0]", "scale[0]", "table[1]", "shift[0]"}


def test_a_layer_that_is_called_twice_is_in_one_group() -> None:
    class Twice(Net):
        def __init__(self) -> None:
            super().__init__()
            self.again = nn.Linear(8, 8)

        def between(self, x: Tensor) -> Tensor:
            return self.again(F.relu(self.again(F.relu(x))))  # type: ignore[no-any-return]

    found = roles(look(Twice(), X)[0]["first"])
    assert {found[f"{name}[0]"] for name in ("first.weight", "again.weight")} == {"producer"}
    assert {found[f"{name}[1]"] for name in ("again.weight", "last.weight")} == {"consumer"}


def test_a_residual_sum_is_a_stream_and_its_branch_is_not() -> None:
    class Residual(Net):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 10), nn.Linear(10, 8)

        def between(self, x: Tensor) -> Tensor:
            return x + self.down(F.relu(self.up(x)))  # type: ignore[no-any-return]

    groups, _ = look(Residual(), X)
    assert {name: group.kind for name, group in groups.items()} == {
        "first": "stream",
        "up": "hidden",
        "first.weight[1]": "inputs",
    }
    assert roles(groups["first"])["down.weight[0]"] == "producer"


class Normalized(Net):
    def between(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (8,))


class Both(Net):
    def between(self, x: Tensor) -> Tensor:
        return F.relu(x) * self.first.weight.sum()


class Tied(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.first(x)) @ self.first.weight


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        (Normalized, "first", "what follows mixes all of them"),
        (Tied, "first", "first.weight has two roles: it makes these channels and reads them"),
        (Both, "first", "first.weight is also used by an operation that cannot be read"),
    ],
)
def test_what_is_no_group_says_why(kind: type[Net], name: str, reason: str) -> None:
    groups, refusals = look(kind(), X)
    assert name not in groups
    assert reason in refusals[name].reason


def test_a_forward_of_one_example_without_a_batch_shows_the_same_groups() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    alone, batched = (look(net, x)[0]["0"].slots for x in (torch.randn(4), torch.randn(3, 4)))
    assert [(s.name, s.indices.tolist()) for s in alone] == [(s.name, s.indices.tolist()) for s in batched]


def test_a_member_that_two_sources_of_a_concatenation_share_is_no_place_of_both() -> None:
    class Shared(Net):
        def __init__(self) -> None:
            super().__init__(out=16)
            self.second, self.prelu = nn.Linear(4, 8), nn.PReLU(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.cat([self.prelu(self.first(x)), self.prelu(self.second(x)).sin()], 1))  # type: ignore[no-any-return]

    groups, refusals = look(Shared(), X)
    assert "prelu.weight[0]" in roles(groups["first"])
    assert refusals["second"].reason == "prelu.weight has the same position for units of first"


@pytest.mark.parametrize(("bends", "kind"), [(True, "stream"), (False, "hidden")])
def test_a_sum_of_two_products_is_a_stream_if_one_goes_around_an_activation(bends: bool, kind: str) -> None:
    class Shortcut(Net):
        def __init__(self) -> None:
            super().__init__()
            self.short, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 5), nn.Linear(5, 8)

        def between(self, x: Tensor) -> Tensor:
            up = self.up(x.relu())
            return F.relu(self.short(x.relu()) + self.down(up.tanh() if bends else up))

    assert look(Shortcut(), X)[0]["short"].kind == kind


def test_what_all_units_share_is_of_none() -> None:
    class MultiQuery(Net):
        def __init__(self) -> None:
            super().__init__(width=16, out=16)
            self.keys, self.values, self.gate = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            q = self.first(x).reshape(-1, 4, 4).transpose(0, 1)
            out = F.scaled_dot_product_attention(q, self.keys(x)[None], self.values(x)[None])
            return self.last(out.transpose(0, 1).flatten(1) * self.gate(x).sigmoid())  # type: ignore[no-any-return]

    groups, refusals = look(MultiQuery(), X)
    assert (groups["first"].kind, groups["first"].units) == ("heads", 4)
    assert roles(groups["first"]).keys() == {"first.weight[0]", "first.bias[0]", "last.weight[1]"}
    assert all("mixes all of them" in refusals[name].reason for name in ("keys", "values", "gate"))
