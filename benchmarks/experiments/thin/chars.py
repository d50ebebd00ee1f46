"""A character-level decoder on the beginning of Penn Treebank: thin sub-networks, dropout, weight decay, all tuned.

Goes beyond the paper. Every method gets as many trials at the baseline's seconds. The learning rate is constant after
its warm-up, so that one training serves every budget; the loss of a budget is the test loss where the validation loss
was smallest up to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, Outcome, Search, evenly
from benchmarks.core.records import Result
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown, study_sections
from benchmarks.core.training import Batch, Batches, Loop, mean_loss
from benchmarks.data.locate import locate
from benchmarks.experiments.thin.decoder import Decoder

FILES = {part: f"ptb/ptb.{part}.txt" for part in ("train", "valid", "test")}
LR, WARM = 2e-3, 100  # the learning rate, reached after so many steps
LENGTH = 64


@dataclass(frozen=True)
class Method:
    """One way to regularize: dropout by torch's own layers, thin by p of hidden units and heads, or weight decay."""

    kind: Literal["none", "dropout", "thin"] = "none"
    p: float = 0.0
    heads: float = 0.33
    k: int = 5
    boost: float | None = None
    weight_decay: float = 0.01
    rescale: bool = True


NONE, DROPOUT, THIN = "none", "dropout", "thin, k = 5"
METHODS = {NONE: Method(), DROPOUT: Method("dropout"), THIN: Method("thin")}
MORE = {"weight decay": Method(), "thin, k = 5, boost 1": Method("thin", boost=1.0)}
MOST = {"thin, k = 10": Method("thin", k=10), "thin, k = 2": Method("thin", k=2)}
GRID: Mapping[str, list[Mapping[str, Any]]] = {
    DROPOUT: [{"p": 0.1}, {"p": 0.2}],
    THIN: [{"p": 0.5, "heads": 0.33}, {"p": 0.25, "heads": 0.17}],
    "weight decay": [{"weight_decay": 0.1}, {"weight_decay": 1.0}],
}


@dataclass(frozen=True)
class Config:
    """How much text and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    points: int = 6
    batch: int = 8
    characters: int = 30_000
    held_out: int = 6_400
    width: int = 96
    heads: int = 6
    layers: int = 3
    timings: int = 10
    every_method: bool = False


PRESETS = {
    "smoke": Config(2, 4, 2, 2, 2000, 640, 12, 6, 1, timings=1),
    "cpu": Config(10, 1600, points=4, timings=8),
    "gpu": Config(10, 20_000, 40, 64, 500_000, 300_000, 384, 6, 6, every_method=True),
}


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return none, dropout and thin, then what else there is, with the same timing of all."""
    rest = MORE | (MOST if config.every_method else {})
    like = {name: THIN for name in rest if name.startswith("thin")}

    def compared(methods: Mapping[str, Method], others: Mapping[str, Method]) -> Comparison[Method]:
        grid = {name: GRID[name] for name in methods if name in GRID}
        return Comparison(
            methods, config.seeds, evenly(config.steps, config.points), Costs(NONE, config.timings, also=others),
            Search(grid, like, at="seconds", score=lambda result: -float(result["validation loss"])),
            splits=("validation", "test"),
        )  # fmt: skip

    return [compared(METHODS, rest), compared(rest, METHODS)]


Texts = tuple[Tensor, Tensor, Tensor, int]
"""Numbers of characters to train on, for validation and for the test, and how many different ones there are."""


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a method on characters."""
    return training(config, method, seed, job, texts(job.data_dir, config.characters, config.held_out))


def training(config: Config, method: Method, seed: int, job: Job, parts: Texts) -> Loop:
    """Return the training of a method; windows of the text are drawn at random."""
    train, valid, test = (part.to(job.device) for part in parts[:3])
    count = parts[3]
    torch.manual_seed(seed)
    model = network(config, method, count).to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=method.weight_decay)
    if method.kind == "thin":
        mrreg.attach(optimizer, model, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(LENGTH + 1)

    def order(generator: torch.Generator) -> list[Tensor]:
        starts = torch.randint(len(train) - LENGTH, (100, config.batch), generator=generator)
        return [(each[:, None] + window).to(train.device) for each in starts]

    def warm(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = LR * min((step + 1) / WARM, 1.0)

    splits = {"validation": lambda: rows(valid), "test": lambda: rows(test)}
    batches = Batches(order, lambda index: (train[index[:, :-1]], train[index[:, 1:]]), generator)
    return Loop(model, optimizer, batches, splits, mean_loss, before=warm)


def rows(text: Tensor) -> list[Batch]:
    """Return a text cut into rows that are read on their own, and the character after each."""
    count = (len(text) - 1) // LENGTH
    x, y = (text[start : start + count * LENGTH].view(count, LENGTH) for start in (0, 1))
    return list(zip(x.split(50), y.split(50), strict=True))  # type: ignore[no-untyped-call]


@cache
def texts(folder: Path | None, characters: int, held_out: int) -> Texts:
    """Return the beginnings of the three texts as numbers of characters, and how many characters there are."""
    root = locate("Penn Treebank", list(FILES.values()), folder, None)
    parts = {part: (root / file).read_text(encoding="utf-8") for part, file in FILES.items()}
    number = {char: place for place, char in enumerate(sorted(set("".join(parts.values()))))}
    train, valid, test = (
        torch.tensor([number[char] for char in parts[part][:size]])
        for part, size in zip(FILES, (characters, held_out, held_out), strict=True)
    )
    return train, valid, test, len(number)


def network(config: Config, method: Method, characters: int) -> nn.Module:
    """Return the decoder of a method; the weights of all methods are the same for a seed."""
    sizes = (characters, config.width, config.heads, config.layers, LENGTH)
    model = Decoder(*sizes, dropout=method.p if method.kind == "dropout" else 0.0)
    if method.kind != "thin":
        return model
    found, rescale = plan(sizes, method.p, method.heads), method.rescale
    return mrreg.thin(model, k=method.k, boost=method.boost, plan=found, rescale=rescale)[0]


@cache
def plan(sizes: tuple[int, int, int, int, int], p: float, heads: float) -> mrreg.ThinReport:
    """Return the groups of units, found once for all trainings."""
    inputs = torch.zeros(2, LENGTH, dtype=torch.long)
    return mrreg.thin(Decoder(*sizes), {"hidden": p, "heads": heads}, example_inputs=inputs)[1]


def result(config: Config, outcome: Outcome[Method]) -> Result:
    """Return the test loss at the smallest validation loss so far, at equal steps and at equal seconds."""
    if outcome.what == "trial":
        return {"validation loss": min(outcome.at_seconds("validation")), **outcome.options}
    return {
        "loss": best(outcome.at_steps("validation"), outcome.at_steps())[-1],
        "loss at equal seconds": best(outcome.at_seconds("validation"), outcome.at_seconds())[-1],
        "loss by step": outcome.at_steps(),
        "loss by time": outcome.at_seconds(),
        "validation loss by time": outcome.at_seconds("validation"),
        "step": list(outcome.budgets),
        "seconds": list(outcome.seconds),
        "steps at equal seconds": outcome.equal[-1],
        "relative cost": outcome.relative,
        "training seconds": outcome.by_steps.seconds,
        **outcome.options,
    }


def best(validation: list[float], test: list[float]) -> list[float]:
    """Return the test loss at the smallest validation loss up to each evaluation."""
    places = range(len(test))
    return [test[min(places[: end + 1], key=validation.__getitem__)] for end in places]


SHOWN = Shown(
    "Character-level decoder on Penn Treebank",
    {name: name for name in METHODS | MORE | MOST},
    [(THIN, DROPOUT), (THIN, NONE), (THIN, "weight decay"), (THIN, "thin, k = 5, boost 1"), (DROPOUT, NONE)],
    "loss", "nats a character", 3, lower=True, words="a smaller loss than", ylabel="test loss [nats a character]",
    note="3 layers of width 96 with 6 heads on the beginning of the training text (`gpu`: larger), AdamW. "
    "Two values each of dropout's p, of the shares of hidden units and heads, and of weight decay are tried on the "
    "validation text at equal seconds. The loss is the test loss where the validation loss was smallest.",
)  # fmt: skip
STUDY = Study("thin-chars", PRESETS, comparisons, build, "loss", lower=True, result=result, data="Penn Treebank")
BENCHMARK = STUDY.benchmark(study_sections(SHOWN, baseline=NONE))
