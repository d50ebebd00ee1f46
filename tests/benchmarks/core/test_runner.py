"""The runner: what is kept, and when a record is continued."""

import json
import math
from pathlib import Path

import pytest
import torch
from helpers.toy_benchmark import Toy, counting, toy

from benchmarks.core import records
from benchmarks.core import runner as harness
from benchmarks.core.errors import UserError
from benchmarks.core.records import Result
from benchmarks.core.runner import Context, Run


def test_a_record_says_what_was_run_with_what(tmp_path: Path) -> None:
    outcome = harness.run(toy(), "smoke", tmp_path)
    assert (outcome.finished, outcome.total) == (4, 4)
    content = json.loads(outcome.path.read_text())
    assert outcome.path.name == "toy-smoke.json"
    assert content["schema"] == records.SCHEMA
    assert content["config"] == {"seeds": 2, "epochs": 3, "methods": ["sgd", "masks"]}
    assert content["versions"].keys() == {"python", "torch", "mrreg"}
    assert content["device"].startswith("cpu")
    assert content["threads"] == torch.get_num_threads()
    run = content["runs"]["masks | seed 1"]
    assert run["results"] == [{"accuracy": 4, "per epoch": [0.1, 0.1, 0.1]}]
    assert run.keys() == {"method", "seeds", "seconds", "date", "commit", "dirty", "results"}


def test_numbers_and_curves_come_back_by_seed(tmp_path: Path) -> None:
    record = records.load(harness.run(toy(), "smoke", tmp_path).path)
    assert record.numbers("sgd", "accuracy") == {0: 3.0, 1: 4.0}
    assert record.curves("sgd", "per epoch")[1] == [0.1, 0.1, 0.1]
    assert record.seeds == [0, 1]
    assert record.numbers("nobody", "accuracy") == {}
    assert record.numbers("sgd", "nothing") == {}


def test_a_wrong_number_of_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one result a seed, got 0"):
        harness.run(toy(lambda config, run, context: []), "smoke", tmp_path)


@pytest.mark.parametrize("fail_at", [0, 3])
def test_finished_runs_survive_a_breakdown_and_are_not_repeated(tmp_path: Path, fail_at: int) -> None:
    broken, before = counting(fail_at)
    with pytest.raises(ZeroDivisionError):
        harness.run(toy(broken), "smoke", tmp_path)
    whole, after = counting()
    outcome = harness.run(toy(whole), "smoke", tmp_path)
    assert before + after == ["sgd | seed 0", "masks | seed 0", "sgd | seed 1", "masks | seed 1"]
    assert outcome.finished == outcome.total == 4
    assert [path.name for path in tmp_path.iterdir()] == ["toy-smoke.json"]


def test_more_seeds_continue_and_fewer_lose_nothing(tmp_path: Path) -> None:
    harness.run(toy(), "smoke", tmp_path)
    execute, seen = counting()
    harness.run(toy(execute), "smoke", tmp_path, seeds=3)
    assert seen == ["sgd | seed 2", "masks | seed 2"]
    path = harness.run(toy(execute), "smoke", tmp_path, seeds=1).path
    assert records.load(path).seeds == [0, 1, 2]


def test_other_settings_begin_anew_and_keep_the_older_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.run(toy(), "smoke", tmp_path)
    execute, seen = counting()
    path = harness.run(toy(execute, epochs=5), "smoke", tmp_path).path
    assert len(seen) == 4
    assert records.load(path).config["epochs"] == 5
    assert records.load(tmp_path / "toy-smoke.json.bak").config["epochs"] == 3
    assert "begun anew (epochs 3 -> 5)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (0.123456789, 0.123457),
        (98765.4321, 98765.4),
        (math.nan, None),
        (-math.inf, None),
        (True, True),
        ((1, 2.5), [1, 2.5]),
        ({"a": [math.inf]}, {"a": [None]}),
        ({3: "x"}, {"3": "x"}),
    ],
)
def test_numbers_are_kept_short(value: object, kept: object) -> None:
    assert records.compact(value, "here") == kept


def test_what_is_not_plain_is_refused_by_its_place(tmp_path: Path) -> None:
    def execute(config: Toy, run: Run, context: Context) -> list[Result]:
        return [{"loss": [1.0, torch.zeros(1)]}]

    with pytest.raises(TypeError, match=r"sgd \| seed 0\[0\]\.loss\[1\]: .* got Tensor"):
        harness.run(toy(execute), "smoke", tmp_path)


def test_what_was_not_finite_comes_back_as_nan(tmp_path: Path) -> None:
    def execute(config: Toy, run: Run, context: Context) -> list[Result]:
        return [{"loss": math.inf, "curve": [1.0, math.nan]}]

    record = records.load(harness.run(toy(execute), "smoke", tmp_path).path)
    assert math.isnan(record.numbers("sgd", "loss")[0])
    assert math.isnan(record.curves("sgd", "curve")[0][1])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema": 1, "runs": {', "JSONDecodeError"),
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "KeyError"),
        ('{"schema": 99}', "schema must be 1, got 99"),
        ('{"schema": 1}', "TypeError"),
    ],
)
def test_an_unreadable_record_is_named_and_left_alone(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "toy-smoke.json"
    path.write_text(text)
    with pytest.raises(UserError, match=f"toy-smoke.json: .*{why}.*Move the file away"):
        harness.run(toy(), "smoke", tmp_path)
    assert path.read_text() == text
