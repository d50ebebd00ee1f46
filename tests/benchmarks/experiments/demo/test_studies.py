"""The two comparisons of the demo are fair and repeat."""

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.core.comparison import Job
from benchmarks.experiments.demo import finetune, thin

SMALL = thin.PRESETS["smoke"]
JOB = Job("compare", 4, None, torch.device("cpu"), Path(), "")


def test_every_tuned_method_has_as_many_candidates() -> None:
    for study in (thin, finetune):
        (comparison,) = study.comparisons(study.PRESETS["demo"])
        assert len({len(grid) for grid in comparison.search.grid.values()}) == 1


def test_every_method_begins_with_the_same_weights() -> None:
    weights = {
        name: list(thin.build(SMALL, method, 3, JOB).model.parameters()) for name, method in thin.METHODS.items()
    }
    for each in weights.values():
        torch.testing.assert_close(each, weights[thin.NONE], rtol=0, atol=0)


@pytest.mark.parametrize("method", thin.METHODS)
def test_a_training_repeats_whatever_ran_before(method: str) -> None:
    first, second = (thin.build(SMALL, thin.METHODS[method], 5, JOB) for _ in range(2))
    for loop in (first, second):
        torch.manual_seed(1)
        for _ in range(3):
            loop.step()
        torch.rand(7)
    torch.testing.assert_close(list(first.model.parameters()), list(second.model.parameters()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("method", "moved"),
    [
        (finetune.FULL, {"0", "2", "4", "6"}),
        (finetune.MULTIRATE, {"0", "2", "4", "6"}),
        (finetune.FROZEN, {"4", "6"}),
        (finetune.LAST, {"6"}),
    ],
)
def test_fine_tuning_moves_what_it_says(method: str, moved: set[str]) -> None:
    loop = finetune.build(finetune.PRESETS["smoke"], finetune.METHODS[method], 0, JOB)
    assert isinstance(loop.model, nn.Sequential)
    before = {name: value.clone() for name, value in loop.model.state_dict().items()}
    for _ in range(6):
        loop.step()
    now = loop.model.state_dict()
    assert {name.partition(".")[0] for name in now if not torch.equal(now[name], before[name])} == moved


def test_pretraining_is_done_once_for_a_seed_and_not_touched_by_fine_tuning() -> None:
    config = finetune.PRESETS["smoke"]
    given = config.images, config.width, config.pretraining
    before = {name: value.clone() for name, value in finetune.pretrained(1, *given).items()}
    loop = finetune.build(config, finetune.METHODS[finetune.FULL], 1, JOB)
    loop.step()
    torch.testing.assert_close(dict(finetune.pretrained(1, *given)), before, rtol=0, atol=0)
