import pytest
import torch

from mrreg.masks.groups import Kind, Slot
from mrreg.thinning.counts import kept, with_counts
from mrreg.thinning.report import ThinEntry


def group(name: str, kind: Kind, units: int, entries: int = 1) -> ThinEntry:
    indices = torch.arange(units * entries).view(units, entries)
    producer = Slot(f"{name}.weight", 0, indices, "producer")
    consumer = Slot("next.weight", 1, indices, "consumer")
    return ThinEntry(name, kind, units, units, (consumer,) if kind == "inputs" else (producer, consumer))


GROUPS = [
    group("layer.0.attention", "heads", 8, 4),
    group("layer.0.mlp", "hidden", 10),
    group("layer.1.mlp", "hidden", 20),
    group("conv", "channels", 40),
    group("trunk", "stream", 30),
    group("first", "inputs", 12),
]


def counts(
    p: float | dict[str, float] | None, include: list[str] | None = None, exclude: list[str] | None = None
) -> dict[str, int]:
    return {
        each.name: each.units - each.kept for each in with_counts(GROUPS, p, include, exclude) if each.kept < each.units
    }


def test_a_number_is_for_inner_groups() -> None:
    assert counts(0.5) == {"layer.0.attention": 4, "layer.0.mlp": 5, "layer.1.mlp": 10, "conv": 24}


def test_a_mapping_drops_what_it_names_and_patterns_go_before_kinds() -> None:
    assert counts({"hidden": 0.5, "inputs": 0.25, "layer.1.*": 0.1}) == {"layer.0.mlp": 5, "layer.1.mlp": 2, "first": 3}
    assert counts({"layer.0.*": 0.0, "hidden": 0.5}) == {"layer.1.mlp": 10}


def test_include_and_exclude() -> None:
    assert counts(0.5, include=["stream", "layer.0.*"]) == {"layer.0.attention": 4, "layer.0.mlp": 5, "trunk": 15}
    assert counts(0.5, exclude=["channels", "layer.0.*"]) == {"layer.1.mlp": 10}


def test_a_name_for_the_inputs_is_that_of_what_reads_them() -> None:
    assert counts({"next": 0.5}) == {}
    assert counts({"inputs": 0.0, "next": 0.5}) == {"first": 6}


def test_kinds_that_are_no_default_lose_units_only_if_they_are_named() -> None:
    assert counts(0.5, include=["*"]) == counts(0.5)
    assert counts({"*": 0.5}) == counts(0.5)
    assert counts(0.5, include=["*", "stream"]) == counts(0.5) | {"trunk": 15}
    assert counts(0.5, include=["blocks", "rank"]) == {}


def test_without_p_each_kind_has_its_own() -> None:
    assert counts(None) == {"layer.0.attention": 2, "layer.0.mlp": 1, "layer.1.mlp": 2, "conv": 5}
    (named,) = with_counts([group("first", "inputs", 12)], None, ["inputs"], None)
    assert named.kept == 10


@pytest.mark.parametrize(
    ("units", "p", "stay"),
    [
        (64, 0.5, 32),
        (40, 0.5, 16),  # 20 would be slow, and 24 is at most 1.5 times the 20 asked for
        (24, 0.25, 16),
        (33, 0.1, 30),  # 24 would take three times as many as asked for
        (16, 0.9, 8),  # 14.4 asked for; eight at the least
        (12, 0.5, 6),  # too few to matter
        (64, 0.0, 64),
        (5, 0.5, 3),  # half units are rounded to even
        (7, 0.5, 3),
        (3, 1.0, 1),  # one stays
    ],
)
def test_channels_stay_at_a_near_multiple_of_eight_and_one_stays(units: int, p: float, stay: int) -> None:
    assert kept(group("conv", "channels", units), p) == stay


def test_groups_of_a_grouped_convolution_are_counted_as_they_are() -> None:
    assert kept(group("conv", "channels", 20, entries=4), 0.5) == 10


@pytest.mark.parametrize("argument", ["p", "include", "exclude"])
def test_a_name_that_matches_nothing_lists_what_there_is(argument: str) -> None:
    arguments = {"p": 0.5, "include": None, "exclude": None, argument: {"layer.7.*": 0.5} if argument == "p" else ["x"]}
    with pytest.raises(
        ValueError, match=f"thin: {argument} must be kinds or patterns that match a group of units"
    ) as error:
        with_counts(GROUPS, **arguments)  # type: ignore[arg-type]
    assert "heads" in str(error.value) or "layer.0.mlp" in str(error.value)


@pytest.mark.parametrize(("p", "kind"), [(1.5, ValueError), (-0.1, ValueError), ("0.5", TypeError), (True, TypeError)])
def test_p_is_a_share(p: object, kind: type[Exception]) -> None:
    for value in (p, {"hidden": p}):
        with pytest.raises(kind, match=r"in \[0, 1\]"):
            with_counts(GROUPS, value, None, None)  # type: ignore[arg-type]


def test_one_string_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match="thin: include must be a list of kinds or glob patterns, got 'heads'"):
        with_counts(GROUPS, 0.5, "heads", None)
