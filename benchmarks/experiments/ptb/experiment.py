"""Masks, dropout and SGD for a small transformer on Penn Treebank (the paper's figure 9 and table A6).

Differs from the paper: it gives neither the momentum here (0.9 is its default; 0 is tried too) nor the p of masks and
dropout, which are searched on the validation text with one seed that the comparison does not use, nor the number of
epochs. `cpu` trains on a tenth of the text, with fewer words and smaller batches, until SGD has passed its minimum.
`whole` has the paper's text, words and batches, thin training too, and no trials: it takes the p that `cpu` has found.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import mrreg
from benchmarks.core.comparison import Comparison, Job, Search, each_epoch, least_loss
from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Claim, Curves, Paper, Section, Shown, gain, rows, searched
from benchmarks.core.study import Study, at_best_validation
from benchmarks.core.training import Batch, Batches, Loop, mean_loss
from benchmarks.experiments.ptb.data import TOKENS, penn_treebank
from benchmarks.experiments.ptb.model import LENGTH, LR, Method, network

MINIMUM, TEST = "validation loss", "loss"  # both where the validation loss was smallest
HELD_OUT_ROWS = 50  # of a batch of held-out text; every 35 words are read on their own, so this changes speed only

# with the p that were best on a tenth of the text, for a preset that tries none
SEARCHED = {"dropout": Method("dropout", 0.3), "masks": Method("masks", 0.1), "unit masks": Method("unit masks", 0.3)}
COMPARED = {"SGD": Method(), **SEARCHED}
FIGURE, THIN = ("SGD", "dropout", "masks"), "thin, defaults"
K = {"masks, k = 3": Method("masks", k=3), "masks, k = 10": Method("masks", k=10)}
H_S = {f"masks, h_S = {h:g}": Method("masks", boost=round(h / LR, 6)) for h in (0.2, 0.3, 0.8)}  # 0.5 is k = 5
TABLES = K | H_S
PLAIN = "SGD, momentum 0"
METHODS = COMPARED | TABLES | {PLAIN: Method(momentum=0.0), THIN: Method("thin", None)}


@dataclass(frozen=True)
class PtbConfig:
    """The text, the length of trainings, and the p that are tried; None is all of the text or words."""

    seeds: int  # of the comparison; the search has one of its own
    epochs: int  # at most so many
    p: tuple[float, ...]  # what is tried for dropout, masks and unit masks; empty: figure 9 alone, and thin training
    # training ends after so many epochs without a new minimum of the validation loss; None never does
    patience: int | None = None
    batch: int = 128  # rows of a batch of 35 words each
    tokens: int | None = None  # of the training text
    words: int | None = None  # how many different ones; the others are `<unk>`
    held_out: int | None = None  # tokens of the validation and of the test text
    width: int = 200  # of the model
    bfloat16: bool = False  # multiply matrices in bfloat16


PRESETS = {
    "smoke": PtbConfig(1, 2, (0.1,), 1, batch=8, tokens=2_000, words=100, held_out=1_800, width=8),
    "cpu": PtbConfig(3, 12, (0.03, 0.1, 0.3), 2, batch=20, tokens=93_000, words=1_000, held_out=25_000),
    "whole": PtbConfig(1, 6, ()),
    "gpu": PtbConfig(3, 12, (0.1, 0.3), bfloat16=True),  # 2,484 steps a run, whose cost is that of launching kernels
    "paper": PtbConfig(10, 100, (0.03, 0.1, 0.2, 0.3, 0.5), 10),
}


def comparisons(config: PtbConfig) -> list[Comparison[Method]]:
    """Return search and figure, SGD with momentum 0 (one seed), tables, unit masks; without trials figure and thin."""
    length = (config.tokens or TOKENS["train"]) // config.batch  # of a row
    epoch = -(-(length - 1) // LENGTH)

    def compared(names: Iterable[str], *tuned: str, seeds: int = config.seeds) -> Comparison[Method]:
        return Comparison(
            {name: METHODS[name] for name in names}, seeds, each_epoch(epoch, config.epochs),
            search=search(config.p, *tuned), splits=("validation", "test"), patience=config.patience,
        )  # fmt: skip

    if not config.p:
        return [compared([*FIGURE, THIN])]
    return [
        compared(FIGURE, "dropout", "masks"),
        compared([PLAIN], seeds=1),
        compared(TABLES, "masks"),
        compared(["unit masks"], "unit masks"),
    ]


def build(config: PtbConfig, method: Method, seed: int, job: Job) -> Loop:
    """Return a training whose weights, dropout and masks follow from the seed; the text always has the same order."""
    text = penn_treebank(job.data_dir, config.tokens, config.words, config.held_out).to(job.device)
    torch.manual_seed(seed)
    model = network(method, text.words, config.width).to(job.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=method.momentum)
    if method.kind.endswith("masks") or method.kind == "thin":
        mrreg.attach(optimizer, model, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator
    train = batches(in_rows(text.train, config.batch))
    valid, test = (batches(in_rows(part, HELD_OUT_ROWS)) for part in (text.valid, text.test))
    return Loop(
        model,
        optimizer,
        Batches(lambda generator: range(len(train)), train.__getitem__, torch.Generator()),
        {"validation": lambda: valid, "test": lambda: test},
        metric=mean_loss,
        forward=partial(torch.autocast, job.device.type, torch.bfloat16, enabled=config.bfloat16),
    )


def in_rows(text: Tensor, rows: int) -> Tensor:
    """Return the text cut into rows of equal length that are read side by side; what is left over is dropped."""
    return text[: len(text) // rows * rows].view(rows, -1)


def batches(rows: Tensor) -> list[Batch]:
    """Return at most 35 words of each row, and the word that follows each, in the order of the text."""
    return list(zip(rows[:, :-1].split(LENGTH, 1), rows[:, 1:].split(LENGTH, 1), strict=True))  # type: ignore[no-untyped-call]


def search(p: Sequence[float], *names: str) -> Search:
    """Return the search for the p of some methods; all others take what it has found for their kind."""
    return Search(
        {name: [{"p": each} for each in p] for name in names if p},
        {name: method.kind for name, method in METHODS.items()},
        score=least_loss,
    )


SMALL = frozenset({"smoke", "cpu"})
LARGE = frozenset({"gpu", "paper"})
WHOLE = frozenset({"whole"})
SAME = "The same runs as in figure 9."

BY_K = {"masks, k = 3": Paper(4.870), "masks": Paper(4.825), "masks, k = 10": Paper(4.838)}
BY_H_S = {
    "masks, h_S = 0.2": Paper(4.824), "masks, h_S = 0.3": Paper(4.823), "masks": BY_K["masks"],
    "masks, h_S = 0.8": Paper(4.831),
}  # fmt: skip
SPREAD = 0.3  # what the paper gives as the spread of each number over 10 runs

NOTE = (
    "The model of PyTorch's word-level transformer tutorial, sequences of 35 words, h = 0.1. Momentum is the paper's "
    '0.9 "unless indicated otherwise". The paper does not give the p of masks and dropout: both are searched on the '
    "validation text, with as many trials and one seed that the comparison does not use. Masks are on every weight "
    "matrix of the encoder layers, entry by entry, k = 5, not rescaled. The loss is the minimum over epochs of the "
    "validation loss in nats a word; test loss is that of the same epoch."
)
SMALLER = (
    " Here: the first tenth of the training text with its 1,000 most frequent words (all others are <unk>, which saves "
    "most of the decoder's time; it makes losses lower, so that they cannot be compared with the paper's), the first "
    "third of the held-out texts, batches of 20 sequences (with 128, a tenth of the text would be 20 steps an epoch). "
    "A run ends after two epochs without a new minimum."
)
SHORT = (
    " `whole` and `gpu` end before the minimum of the whole text is reached; `paper` goes on for up to 100 epochs. "
    "`whole` searches nothing: masks and dropout have the p that was best on a tenth of the text."
)


def less(method: str, than: str, name: str = MINIMUM) -> Claim:
    """The claim that a method has the lower loss."""
    return Claim(f"{_label(method)}: lower loss than {_label(than)}.", gain(than, method, name))


def _label(method: str) -> str:
    return "masks, k = 5" if method == "masks" else method


def _paper(
    item: str,
    title: str,
    presets: frozenset[str],
    papers: Mapping[str, Paper],
    label: Callable[[str], str],
    **more: Any,
) -> Section:
    """Return a table of the paper, on the whole text or on a tenth of it."""
    small = presets is SMALL
    return Section(
        item, title, digits=3, rows=rows(more.pop("methods", papers), MINIMUM, papers, label),
        plots=(*more.pop("plots", ()), Bars("minimum validation loss")), tolerance=None if small else SPREAD,
        better="lower", full=frozenset({"paper"}), smaller="a tenth of the text" if small else "fewer epochs",
        needs="a GPU" if presets is LARGE else "", presets=presets, note=NOTE + (SMALLER if small else SHORT), **more,
    )  # fmt: skip


def _figure(presets: frozenset[str], *also: str) -> Section:
    curves = {_label(each): each for each in (*COMPARED, *also)}
    claims = [(one, other) for one in ("masks", *also) for other in ("SGD", "dropout")]
    return _paper(
        "Figure 9", "Masks, dropout and SGD on Penn Treebank: minimum validation loss", presets, BY_K, _label,
        methods=(*FIGURE, *also), claims=tuple(less(*pair) for pair in claims), facts=facts,
        plots=[Curves(curves, "validation loss by step", "epoch", "validation loss")],
    )  # fmt: skip


def _of_the_paper(presets: frozenset[str]) -> tuple[Section, ...]:
    return (
        _figure(presets),
        _paper("Table A6", "Masks on Penn Treebank: effect of k, with h_S = k h_F", presets, BY_K, _label,
               claims=(less("masks", "masks, k = 3"), less("masks", "masks, k = 10"))),
        _paper("Table A6", "Masks on Penn Treebank: effect of the slow step size h_S at k = 5", presets, BY_H_S,
               lambda each: f"h_S = {each.partition('h_S = ')[2] or 0.5}"),
    )  # fmt: skip


def _on_test_text(title: str, ours: Sequence[str], task: str, presets: frozenset[str], note: str) -> Shown:
    return Shown(
        title, {_label(each): each for each in ("SGD", "dropout", *ours)},
        [(_label(each), other) for each in ours for other in ("SGD", "dropout")], "loss", "", 3, lower=True,
        words="lower loss than", ylabel="test loss", task=task, against=[(_label(each), "dropout") for each in ours],
        note="The test text is seen by nobody's choices: p and epoch are chosen on the validation text. " + note,
        presets=presets,
    )  # fmt: skip


UNSEEN = _on_test_text("Penn Treebank", ["masks"], "Penn Treebank (a tenth), transformer", SMALL | LARGE, SAME)
ALL_TEXT = _on_test_text("Penn Treebank, all of the text", ["masks", THIN], "", WHOLE, SAME)
UNITS = _on_test_text(
    "Penn Treebank: masks by unit", ["unit masks"], "", SMALL | LARGE,
    "Unit masks are what swap_dropout makes of the dropout in the encoder layers (whole units, rescaled); dropout on "
    "attention probabilities, which has no weights, stays as it is. Otherwise as in figure 9.",
)  # fmt: skip


def facts(record: Record) -> Sequence[str]:
    """Return what the search found, when each method was best, the two momenta, and the differences of methods."""
    said = searched(record, search(record.config["p"], *SEARCHED), SEARCHED, digits=3, sign=-1)
    for name in (*COMPARED, PLAIN, THIN):
        when = [f"{each.index(min(each)) + 1} of {len(each)}"
                for each in record.curves(name, "validation loss by step").values()]  # fmt: skip
        said += [f"{_label(name)}: minimum after {', '.join(when)} epochs, seed by seed."] if when else []
    return said


STUDY = Study("ptb", PRESETS, comparisons, build, "loss", lower=True, summary=at_best_validation, data="Penn Treebank")
BENCHMARK = STUDY.benchmark(
    [
        *_of_the_paper(SMALL), _figure(WHOLE, THIN), *_of_the_paper(LARGE),
        *(each.section("test loss at the epoch of the minimum", TEST) for each in (UNSEEN, ALL_TEXT)),
        UNITS.section("test loss", TEST),
    ],
    [UNSEEN],
)  # fmt: skip
