"""Records whose question is answered: their code is gone, and what they say is shown by one rule for all."""

from collections.abc import Sequence

import pandas as pd

from benchmarks.core.records import Record
from benchmarks.core.sections import Row, Section, metric


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return every number of some records as one row: record, method, seed, number, place in its curve, value."""
    rows = [
        (f"{record.benchmark} {record.preset}", run["method"], seed, number, place, value)
        for record in records
        for run in record.runs.values()
        for seed, result in zip(run["seeds"], run["results"], strict=True)
        for number, values in result.items()
        for place, value in enumerate(values if isinstance(values, list) else [values])
        if value is None or isinstance(value, float | int)
    ]
    return pd.DataFrame(rows, columns=["record", "method", "seed", "number", "place", "value"])


def sections(record: Record) -> tuple[Section, ...]:
    """Return one section with every number that is no curve, and what the question came to."""
    pairs = dict.fromkeys(
        (run["method"], number)
        for run in record.runs.values()
        for result in run["results"]
        for number, value in result.items()
        if isinstance(value, float | int)
    )
    title = f"{record.benchmark} (closed)"
    note = f"This question is closed; its code is at commit {', '.join(record.distinct('commit')) or 'unknown'}."
    return (
        Section(
            "", title, digits=3, found="closed", note=note, facts=lambda each: each.answer,
            rows=tuple(Row(f"{method}: {number}", metric(method, number)) for method, number in pairs),
        ),
    )  # fmt: skip
