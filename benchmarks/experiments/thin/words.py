"""The decoder of thin-chars on frequent words of Penn Treebank: thin sub-networks, dropout, weight decay, all tuned.

Goes beyond the paper. Words but the most frequent ones are one word, so that neither embedding nor head is most of the
network.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from benchmarks.core.comparison import Job
from benchmarks.core.study import Study
from benchmarks.core.study_sections import study_sections
from benchmarks.core.training import Loop
from benchmarks.data.locate import locate
from benchmarks.experiments.thin import chars

UNKNOWN = "<unk>"  # also what Penn Treebank has for rare words


@dataclass(frozen=True)
class Config(chars.Config):
    """As for characters, whose counts are counts of words here."""

    vocabulary: int = 1000


PRESETS = {
    "smoke": Config(2, 4, 2, 2, 2000, 640, 12, 6, 1, timings=1, vocabulary=50),
    "cpu": Config(10, 1000, 5, timings=5),
    "gpu": Config(10, 20_000, 40, 64, 200_000, 70_000, 384, 6, 6, every_method=True, vocabulary=5000),
}


def build(config: Config, method: chars.Method, seed: int, job: Job) -> Loop:
    """Return the training of a method on words."""
    parts = texts(job.data_dir, config.characters, config.held_out, config.vocabulary)
    return chars.training(config, method, seed, job, parts)


@cache
def texts(folder: Path | None, words: int, held_out: int, vocabulary: int) -> chars.Texts:
    """Return the beginnings of the three texts as numbers of words, and how many words there are."""
    root = locate("Penn Treebank", list(chars.FILES.values()), folder, None)
    parts = {part: (root / file).read_text(encoding="utf-8").split() for part, file in chars.FILES.items()}
    frequent = [word for word, _ in Counter(parts["train"]).most_common(vocabulary) if word != UNKNOWN]
    number = {word: place for place, word in enumerate(frequent[: vocabulary - 1], start=1)}
    train, valid, test = (
        torch.tensor([number.get(word, 0) for word in parts[part][:size]])
        for part, size in zip(chars.FILES, (words, held_out, held_out), strict=True)
    )
    return train, valid, test, len(number) + 1


SHOWN = replace(
    chars.SHOWN,
    title="Word-level decoder on Penn Treebank",
    unit="nats a word",
    ylabel="test loss [nats a word]",
    note="3 layers of width 96 with 6 heads on the first 30,000 words of the training text, all but the 999 most "
    "frequent ones being one word (`gpu`: larger), AdamW. Two values each of dropout's p, of the shares of hidden "
    "units and heads, and of weight decay are tried on the validation text at equal seconds. The loss is the test loss "
    "where the validation loss was smallest.",
)
STUDY = Study(
    "thin-words", PRESETS, chars.comparisons, build, "loss", lower=True, result=chars.result, data="Penn Treebank"
)
BENCHMARK = STUDY.benchmark(study_sections(SHOWN, baseline=chars.NONE))
