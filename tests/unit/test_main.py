"""The command line of mrreg, and what importing mrreg costs and shows."""

import json
import pkgutil
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import mrreg
from mrreg.__main__ import app

NET = f"{__name__}:network"
pytestmark = pytest.mark.usefixtures("quick_audit")


class Words(nn.Module):
    """A model that takes a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))  # type: ignore[no-any-return]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))


def two_inputs() -> nn.Module:
    return nn.Bilinear(3, 4, 2)


def words() -> dict[str, Tensor]:
    return {"ids": torch.randint(7, (2, 3))}


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_audit_prints_the_report() -> None:
    code, out, _ = run("audit", NET, "--shape", "4,6")
    assert code == 0
    assert out.startswith("Sequential on cpu")
    assert "Times faster" in out


def test_fast_part_and_inputs_can_be_given() -> None:
    report = json.loads(run("audit", NET, "--shape", "4,6", "--json")[1])
    assert report["parts"]["fast"]["parameters"] == 18  # the last layer
    report = json.loads(run("audit", NET, "--shape", "4,6", "--fast", "2", "--fast", "3", "--json")[1])
    assert report["parts"]["fast"]["parameters"] == 18 + 72
    report = json.loads(run("audit", f"{__name__}:Words", "--inputs", f"{__name__}:words", "--json")[1])
    assert report["parts"]["fast"]["parameters"] == 10
    code, _, _ = run("audit", f"{__name__}:two_inputs", "--shape", "5,3", "--shape", "5,4", "--fast", "weight")
    assert code == 0


def test_thin_lists_groups_and_shares() -> None:
    code, out, _ = run("thin", NET, "--shape", "4,6", "--k", "4")
    assert code == 0
    assert "hidden" in out
    assert "a cycle of 4 steps" in out
    lines = [line.split()[:6] for line in run("thin", NET, "--shape", "4,6", "--p", "0.25")[1].splitlines()]
    assert ["0", "hidden", "left", "out", "8", "6"] in lines


def test_p_is_checked_before_anything_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mrreg, "thin", pytest.fail)
    for p in ("2", "nan"):
        code, _, err = run("thin", NET, "--shape", "4,6", "--p", p)
        assert code == 2
        assert err.startswith("Error: thin: p must be in [0, 1]")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "model must be module:factory that can be imported, got 'nonsense'. No module named"),
        ([f"{__name__}:netwrk"], f"netwrk'. module '{__name__}' has no attribute 'netwrk'"),
        ([f"{__name__}:words"], "a factory of an nn.Module, got 'dict'"),
        ([NET], "inputs must be given by --shape or by --inputs, got 'neither'"),
        ([NET, "--shape", "4,6", "--inputs", f"{__name__}:words"], "got 'both'"),
        ([NET, "--shape", "4,x"], "whole numbers with commas, such as 2,3,64,64, got '4,x'"),
        ([NET, "--shape", "4,6", "--fast", "layer"], "audit: fast must be the name of a module"),
        ([NET, "--shape", "4,5"], "audit: raised by the forward in training mode on example_inputs."),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], says: str) -> None:
    code, out, err = run("audit", *arguments)
    assert code == 2
    assert not out
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert says in err


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "mrreg.__main__")
    with pytest.raises(SystemExit, match=r"^python -m mrreg needs typer: pip install 'mrreg\[cli\]'$"):
        runpy.run_module("mrreg", run_name="__main__")


def test_the_package_shows_its_public_names_and_submodules() -> None:
    names = {name for name in dir(mrreg) if not name.startswith("_")}
    modules = {module.name for module in pkgutil.iter_modules(mrreg.__path__)}
    assert set(mrreg.__all__) <= names <= set(mrreg.__all__) | modules


@pytest.mark.slow
def test_importing_mrreg_takes_little_beside_torch_and_imports_no_framework() -> None:
    code = (
        "import sys; from time import process_time as t; a = t(); import torch; b = t(); import mrreg, "
        "mrreg.integrations; print((t() - b) / (b - a), not {'transformers', 'lightning'} & {*sys.modules})"
    )
    folder = Path(mrreg.__file__).parents[1]
    share, is_clean = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=folder).split()
    assert float(share) <= 0.2
    assert is_clean == "True"
