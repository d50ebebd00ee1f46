"""Warnings of mrreg point at the user's line, from however deep inside; errors say so where a class is given."""

import sys
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mrreg
from mrreg.errors import NoEffectWarning, check, check_share, check_type, warn


def _inside(file: str) -> Any:
    """Return a function that warns from a line of a file."""
    scope: dict[str, Any] = {"warn": warn}
    exec(compile("def call(*_):\n    warn('nothing')", file, "exec"), scope)
    return scope["call"]


MRREG = _inside(str(Path(mrreg.__file__).with_name("a_file.py")))


def _in_a_hook() -> Any:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(torch.no_grad()(MRREG))
    return partial(layer, torch.ones(1, 2))


def _behind_contextlib() -> Any:
    exits = ExitStack()
    exits.push(MRREG)
    return exits.close


@pytest.mark.parametrize("call", [MRREG, _in_a_hook(), _behind_contextlib()], ids=["mrreg", "torch", "contextlib"])
def test_a_warning_points_at_the_line_of_the_user(call: Any) -> None:
    with pytest.warns(NoEffectWarning, match="nothing") as caught:
        lines = [call(), sys._getframe().f_lineno]
    assert (caught[0].filename, caught[0].lineno) == (__file__, lines[1])


def test_a_package_whose_name_begins_alike_is_the_users() -> None:
    with pytest.warns(NoEffectWarning) as caught:
        _inside(f"{Path(torch.__file__).parent}vision/transforms.py")()
    assert caught[0].filename.endswith("vision/transforms.py")


def test_a_warning_at_one_line_shows_once_by_default() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            MRREG()
    assert len(caught) == 1


def test_check_raises_only_where_the_condition_fails() -> None:
    check([1], "thin", "k", "known", 3)
    with pytest.raises(ValueError, match=r"^thin: k must be known, got 3\. Ask\.$"):
        check([], "thin", "k", "known", 3, "Ask.")
    with pytest.raises(TypeError, match=r"^thin: k must be known, got 3\.$"):
        check(False, "thin", "k", "known", 3, kind=TypeError)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "0.5", None])
def test_a_share_lies_between_zero_and_one(value: Any) -> None:
    assert [check_share("mask", "p", each) for each in (0, 0.5, 1)] == [0.0, 0.5, 1.0]
    with pytest.raises((TypeError, ValueError), match=r"^mask: p must be .*in \[0, 1\]"):
        check_share("mask", "p", value)


def test_a_class_in_the_place_of_its_instance_is_named() -> None:
    layer = nn.Linear(1, 1)
    assert check_type("thin", "model", layer, nn.Module, "an nn.Module") is layer
    says = r"^thin: model must be an nn.Module, got 'Linear'\. Linear is a class: give an instance, Linear\(\.\.\.\)\.$"
    with pytest.raises(TypeError, match=says):
        check_type("thin", "model", nn.Linear, nn.Module, "an nn.Module")
    for other, name in ((3, "int"), (dict, "dict")):
        with pytest.raises(TypeError, match=rf"^thin: model must be an nn.Module, got '{name}'\. Ask\.$"):
            check_type("thin", "model", other, nn.Module, "an nn.Module", "Ask.")
