"""What the demo says at its end: one sentence for each comparison, true whatever came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.core import stats
from benchmarks.core.records import Record

DIGITS = 2


@dataclass(frozen=True)
class Race:
    """Two methods of a record that are watched over time."""

    name: str  # what ours is called in the sentence
    ours: str  # the method of this library, as the record names it
    rival: str  # what it is compared with
    on: str  # on what, in words that end the sentence
    curve: str = "accuracy by time"  # the name of the lists of accuracies in the results
    time: str = "seconds"  # the name of the lists of seconds or epochs
    unit: str = "time"  # what `time` counts, in a word

    def said(self, record: Record) -> str:
        """Return when ours reached the rival's last accuracy, or by how much it stayed away from it.

        The share of the time is given where every seed reached it: the mean of the seeds with a 95 % interval.
        """
        ours, rival = (record.results(method) for method in (self.ours, self.rival))
        seeds = sorted(ours.keys() & rival.keys())
        shares = [self._share(ours[seed], rival[seed]) for seed in seeds]
        reached = [share for share in shares if share is not None]
        if len(seeds) < 2:
            return f"{self.name} and {self.rival} have {len(seeds)} common seeds on {self.on}: too few to say anything."
        goal = f"{self.name} reached the accuracy of {self.rival}"
        if len(reached) == len(seeds):
            return f"{goal} in {_interval(reached)} of its {self.unit} on {self.on}."
        last = [ours[seed][self.curve][-1] - rival[seed][self.curve][-1] for seed in seeds]
        end = f"in the end it was {VERDICTS[stats.judge(last)]}: {_interval(last, '+')} points from it"
        return f"{goal} with {len(reached)} of {len(seeds)} seeds on {self.on}; {end}."

    def _share(self, ours: Mapping[str, Sequence[float]], rival: Mapping[str, Sequence[float]]) -> float | None:
        """Return the share of the rival's time after which ours first had the rival's last accuracy."""
        goal, end = rival[self.curve][-1], rival[self.time][-1]
        times = zip(ours[self.time], ours[self.curve], strict=True)
        return next((time / end for time, accuracy in times if accuracy >= goal), None)


VERDICTS = {"above": "ahead", "below": "behind", "within noise": "level within noise"}


def _interval(values: Sequence[float], sign: str = "") -> str:
    found = stats.summarize(values)
    mean, low, high = (f"{value:{sign}.{DIGITS}f}" for value in (found.mean, *found.interval))
    return f"{mean} (95 % interval {low} to {high}, {found.n} seeds)"
