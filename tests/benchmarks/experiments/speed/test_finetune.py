"""The benchmark of fine-tuning with a fast head: what it times, and what it holds the library to."""

from functools import partial

import pytest
import torch

from benchmarks.core.records import Record
from benchmarks.experiments.speed import finetune as speed
from benchmarks.report import pages as report

SMOKE = speed.PRESETS["smoke"]
NAMES = ("speed-up k=5", "predicted k=5", "against hand k=5", "MiB full", "MiB fast")


def test_hand_written_loop_trains_as_the_optimizer_does() -> None:
    case = SMOKE.cases[0]
    start = speed.task(case, torch.device("cpu"))
    for module in start.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ours, hand = start.copy(), start.copy()
    for call in (partial(speed.multirate, ours, 5), partial(speed.by_hand, hand, 5)):
        cycle = call()
        cycle()
        cycle()
    pairs = list(zip(ours.model.parameters(), hand.model.parameters(), start.model.parameters(), strict=True))
    assert all(torch.equal(one, other) for one, other, _ in pairs)
    assert any(not torch.equal(one, old) for one, _, old in pairs)
    assert all(p.requires_grad for p in hand.model.parameters())


def filled(ratio: float, predicted: float, hand: float) -> Record:
    record = Record("speed finetune", "cpu", {}, "cpu", 1, {"torch": "x", "mrreg": "x"})
    for case in speed.PRESETS["cpu"].cases:
        results = [
            {"MiB full": 2.0, "MiB fast": 1.0}
            | {f"speed-up k={k}": ratio + noise / 1000 for k in speed.KS}
            | {f"predicted k={k}": predicted for k in speed.KS}
            | {f"against hand k={k}": hand + noise / 1000 for k in speed.KS}
            for noise in range(3)
        ]
        record.add(case.name, case.name, (0, 1, 2), 1.0, list(results))
    return record


@pytest.mark.parametrize(
    ("numbers", "failing"),
    [((2.5, 2.4, 1.0), ""), ((2.5, 2.0, 1.0), "predicted"), ((1.8, 1.8, 1.0), "2.0 times"), ((2.5, 2.5, 0.9), "hand")],
)
def test_claims_hold_only_where_they_should(numbers: tuple[float, float, float], failing: str) -> None:
    chapters = report.chapters([(filled(*numbers), speed.SECTIONS)], {})
    (block,) = [block for chapter in chapters for block in chapter.blocks]
    assert len(block.claims) == 1 + 4 * (1 + 3)
    for claim in block.claims:
        assert (claim.said == "reproduced") == (not failing or failing not in claim.text)
    assert any("a full step needs 2.0 MiB, a fast step 1.0 MiB" in fact for fact in block.facts)
