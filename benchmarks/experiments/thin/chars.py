"""A decoder of torch's own layers on the beginning of Penn Treebank, by characters or by frequent words.

Words but the most frequent ones are one word, so that neither embedding nor head is most of the network.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Batch, Batches, Loop, mean_loss
from benchmarks.data.locate import locate
from benchmarks.experiments.regularizers import Method, Regularizers, Tried
from benchmarks.experiments.thin.decoder import Decoder

FILES = {part: f"ptb/ptb.{part}.txt" for part in ("train", "valid", "test")}
UNKNOWN = "<unk>"  # also what Penn Treebank has for rare words
LENGTH = 64


@dataclass(frozen=True)
class Config:
    """How much text and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    points: int = 5
    batch: int = 8
    characters: int = 30_000
    held_out: int = 6_400
    width: int = 96
    heads: int = 6
    layers: int = 3
    timings: int = 8
    vocabulary: int | None = None  # how many words, if words are read


SMALL = Config(2, 4, 2, 2, 2000, 640, 12, 6, 1, timings=1)
LARGE = Config(10, 20_000, 40, 64, 300_000, 300_000, 384, 6, 6)


def loop(config: Config, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    """Return the training; windows of the text are drawn at random."""
    parts, _ = texts(job.data_dir, config.characters, config.held_out, config.vocabulary)
    train, valid, test = (part.to(job.device) for part in parts)
    window = torch.arange(LENGTH + 1)

    def order(generator: torch.Generator) -> list[Tensor]:
        starts = torch.randint(len(train) - LENGTH, (100, config.batch), generator=generator)
        return [(each[:, None] + window).to(train.device) for each in starts]

    splits = {"validation": lambda: rows(valid), "test": lambda: rows(test)}
    generator = torch.Generator().manual_seed(seed)
    batches = Batches(order, lambda index: (train[index[:, :-1]], train[index[:, 1:]]), generator)
    return Loop(model, optimizer, batches, splits, mean_loss)


def rows(text: Tensor) -> list[Batch]:
    """Return a text cut into rows that are read on their own, and the character after each."""
    count = (len(text) - 1) // LENGTH
    x, y = (text[start : start + count * LENGTH].view(count, LENGTH) for start in (0, 1))
    return list(zip(x.split(50), y.split(50), strict=True))  # type: ignore[no-untyped-call]


@cache
def texts(folder: Path | None, count: int, held_out: int, vocabulary: int | None) -> tuple[list[Tensor], int]:
    """Return the beginnings of the three texts as numbers, and how many different ones there are.

    They are of characters, or of as many frequent words as `vocabulary` says, all others being number 0.
    """
    root = locate("Penn Treebank", list(FILES.values()), folder, None)
    parts = {part: (root / file).read_text(encoding="utf-8") for part, file in FILES.items()}
    if vocabulary is None:
        number, read = {char: place for place, char in enumerate(sorted(set("".join(parts.values()))))}, parts
        kinds = len(number)
    else:
        read = {part: text.split() for part, text in parts.items()}  # type: ignore[misc]
        frequent = [word for word, _ in Counter(read["train"]).most_common(vocabulary) if word != UNKNOWN]
        number = {word: place for place, word in enumerate(frequent[: vocabulary - 1], start=1)}
        kinds = len(number) + 1
    sizes = zip(FILES, (count, held_out, held_out), strict=True)
    return [torch.tensor([number.get(each, 0) for each in read[part][:size]]) for part, size in sizes], kinds


def network(config: Config, method: Method, job: Job) -> Decoder:
    kinds = texts(job.data_dir, config.characters, config.held_out, config.vocabulary)[1]
    return Decoder(kinds, config.width, config.heads, config.layers, LENGTH, method.of("dropout"))


STUDY = Regularizers(
    "regularizers-characters",
    {"smoke": SMALL, "cpu": Config(5, 3000, 15), "gpu": LARGE},
    lambda config: f"Penn Treebank, {config.characters:,} characters, decoder",
    network=network,
    example=lambda config, _: torch.zeros(2, LENGTH, dtype=torch.long),
    loop=loop,
    tried=Tried(
        (5e-4, 1e-3, 2e-3, 4e-3),
        (0.1, 1.0),
        (0.1, 0.2),
        ((("hidden", 0.5), ("heads", 0.33)), (("hidden", 0.25), ("heads", 0.17))),
    ),
    note="3 layers of width 96 with 6 heads on the beginning of the training text (`gpu`: larger), 8 rows of 64 a "
    "step, AdamW.",
    data="Penn Treebank",
    loss="character",
)
BENCHMARK = STUDY.benchmark()

MORE = Config(3, 2000, 10, characters=300_000)
BENCHMARK_MORE = STUDY.with_more("regularizers-characters-300000", MORE, "As for 30,000 characters.").benchmark()
ALL = replace(STUDY, task=lambda config: "Penn Treebank, all characters, decoder").with_more(
    "regularizers-characters-all",
    replace(MORE, characters=6_000_000),
    "As for 30,000 characters; of the 5.1 million 2,000 steps read a fifth.",
)
BENCHMARK_ALL = ALL.benchmark()

WORDS = replace(
    STUDY,
    name="regularizers-words",
    presets={
        "smoke": replace(SMALL, vocabulary=50),
        "cpu": Config(5, 800, 8, vocabulary=1000),
        "gpu": replace(LARGE, characters=200_000, held_out=70_000, vocabulary=5000),
    },
    task=lambda config: f"Penn Treebank, {config.characters:,} words, decoder",
    note="As for characters, on the first words of the training text, all but the 999 most frequent ones being one "
    "word (`gpu`: larger).",
    loss="word",
)
BENCHMARK_WORDS = WORDS.benchmark()
