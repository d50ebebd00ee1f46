"""No change of code changes a number that the report shows: all means and 95 % intervals of all records, compared.

`python -m tests.benchmarks.report.test_numbers` writes them anew, for a new record or a table that is shown otherwise.
"""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path

from benchmarks.__main__ import RESULTS
from benchmarks.core import records, stats
from benchmarks.report import pages
from benchmarks.report.headlines import Pair

SNAPSHOT = Path(__file__).with_name("numbers.json")


def fingerprint(numbers: Iterable[Iterable[float]]) -> str:
    """Return how many summaries there are, and a checksum of their means and intervals to six digits."""
    found = [stats.summarize(each) for each in numbers]
    text = ";".join(f"{each.n} {each.lost} {each.mean:.6g} {each.half:.6g} {each.median:.6g}" for each in found)
    return f"{len(found)} {zlib.crc32(text.encode()):08x}"


def numbers() -> dict[str, str]:
    """Return the fingerprint of every table, its rows and claims, and of every comparison of the documentation."""
    shown, shows = pages.sources(records.load_all(RESULTS))
    made = {
        f"{record.benchmark} {record.preset}: {part.title}": fingerprint(
            [each.values(record) for each in part.rows] + [each.values(record) for each in part.claims]
        )
        for record, parts in shown
        for part in parts
        if part.presets is None or record.preset in part.presets
    }
    return made | {
        f"{record.benchmark} {record.preset}, task {part.task}: {ours} against {rival}": fingerprint(
            pair.differences(number) for number in (pair.at_seconds, part.metric)
        )
        for record, parts in shows
        for part in parts
        for ours, rival in part.against
        for pair in [Pair(record, part, ours, rival)]
    }


def test_every_mean_and_interval_that_the_report_shows_is_what_it_was() -> None:
    before, now = json.loads(SNAPSHOT.read_text(encoding="utf-8")), numbers()
    assert {name: now.get(name) for name in before | now} == before


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(numbers(), indent=0) + "\n", encoding="utf-8")
