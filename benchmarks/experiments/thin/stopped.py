"""The numbers of a training that is judged where it did best on validation data."""

from typing import Any

from benchmarks.core.comparison import Outcome
from benchmarks.core.records import Result


def result(outcome: Outcome[Any], metric: str, *, lower: bool = False) -> Result:
    """Return the metric on test data where it was best on validation data, at equal steps and at equal seconds."""
    if outcome.what == "trial":
        return {f"validation {metric}": best(*[outcome.at_seconds("validation")] * 2, lower=lower)[-1], **outcome.options}
    steps, seconds = (
        {split: at(split) for split in ("validation", "test")} for at in (outcome.at_steps, outcome.at_seconds)
    )
    return {
        metric: best(steps["validation"], steps["test"], lower=lower)[-1],
        f"{metric} at equal seconds": best(seconds["validation"], seconds["test"], lower=lower)[-1],
        f"{metric} by step": steps["test"],
        f"{metric} by time": seconds["test"],
        f"validation {metric} by time": seconds["validation"],
        "step": list(outcome.budgets),
        "seconds": list(outcome.seconds),
        "steps at equal seconds": outcome.equal[-1],
        "relative cost": outcome.relative,
        "training seconds": outcome.by_steps.seconds,
        **outcome.options,
    }


def best(validation: list[float], test: list[float], *, lower: bool = False) -> list[float]:
    """Return the test number at the best validation number up to each evaluation."""
    choose = min if lower else max
    return [test[choose(range(end + 1), key=validation.__getitem__)] for end in range(len(test))]
