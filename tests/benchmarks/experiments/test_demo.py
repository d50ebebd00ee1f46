"""The demo: its sentences say what its records say, and its short form runs without a download."""

from pathlib import Path

import pytest
import torch

from benchmarks.core.comparison import Job
from benchmarks.core.records import Record
from benchmarks.core.sections import Shown
from benchmarks.experiments import demo


def made(name: str, methods: dict[str, list[float]], **costs: float) -> tuple[Record, list[Shown]]:
    """A record with an accuracy a seed, and a cost of a step."""
    record = Record(name, "demo", {}, "cpu", 1, {})
    for method, values in methods.items():
        results = [{"accuracy": each, "accuracy at equal seconds": each, "relative cost": costs.get(method[:4], 1.0)}
                   for each in values]  # fmt: skip
        record.add(method, method, tuple(range(len(values))), 1.0, list(results))
    return record, [Shown("", {each: each for each in methods}, task="digits")]


def test_sentences_say_who_is_ahead_and_what_a_step_costs() -> None:
    thin = made(
        "demo-thin", {demo.THIN: [91.0, 92.0, 93.1], demo.DROPOUT: [90.0, 91.0, 92.0], demo.NONE: [88.0, 89.1, 90.0]},
        thin=0.8, drop=1.3,
    )  # fmt: skip
    tuned = made("demo-finetune", {demo.MULTIRATE: [80.0, 81.0], demo.FULL: [79.0, 82.0], demo.FROZEN: [70.0, 71.1]},
                 mult=0.6)  # fmt: skip
    spiral = made("spiral", {demo.SLOW: [80.0, 81.0], demo.SGD: [70.0, 71.1]})
    first, second, third = demo.sentences([thin, tuned, spiral])
    assert "at equal seconds ahead: +1.0 points (+0.9 to +1.2); dropout against none ahead: +2.0" in first
    assert "a step takes 0.80 of a plain step's time, one with dropout 1.30" in first
    assert "takes 0.60 of the time of an epoch of full fine-tuning" in second
    assert "at equal epochs level: +0.0 points" in second
    assert "ahead: +10.0 points (+9.3 to +10.6)" in third


@pytest.mark.slow
def test_the_short_form_writes_a_report_and_three_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.run(tmp_path, "smoke")
    *_, first, second, third, report = capsys.readouterr().out.splitlines()
    assert [each.split()[0] for each in (first, second, third)] == ["Thin", "Multirate", "Multirate"]
    assert report == f"Report: {tmp_path.resolve() / 'report.html'}"
    text = (tmp_path / "report.html").read_text()
    assert all(f"<h3>{card.title}</h3>" in text for card in demo.CARDS)


@pytest.mark.parametrize("method", [demo.MULTIRATE, demo.FROZEN])
def test_lower_layers_train_at_every_fifth_step_or_never(method: str) -> None:
    config = demo.PRESETS["smoke"]
    job = Job("compare", 4, None, torch.device("cpu"), None, method)
    loop = demo.build(config, demo.METHODS[method], 0, job)
    first = loop.model.get_parameter("0.weight")
    before = first.detach().clone()
    loop.step()
    assert torch.equal(first, before) == (method == demo.FROZEN)
