"""The report of Penn Treebank."""

from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Claim, Curves, Paper, Row, Section, gain, metric
from benchmarks.experiments.ptb.methods import COMPARED, MINIMUM, SEARCHED, WITHOUT_MOMENTUM, search

TEST = "test loss at the minimum"
SMALL = frozenset({"smoke", "cpu"})
WHOLE = frozenset({"gpu", "paper"})

BY_K = {"masks, k = 3": 4.870, "masks": 4.825, "masks, k = 10": 4.838}
BY_H_S = {"masks, h_S = 0.2": 4.824, "masks, h_S = 0.3": 4.823, "masks": 4.825, "masks, h_S = 0.8": 4.831}
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
SHORT = " `gpu` ends before the minimum of the whole text is reached; `paper` goes on for up to 100 epochs."


def less(method: str, than: str, name: str = MINIMUM) -> Claim:
    """The claim that a method has the lower loss."""
    return Claim(f"{_label(method)}: lower loss than {_label(than)}.", gain(than, method, name))


def _label(method: str) -> str:
    return "masks, k = 5" if method == "masks" else method


def _rows(papers: Mapping[str, float | None], name: str = MINIMUM) -> tuple[Row, ...]:
    return tuple(
        Row(_label(each), metric(each, name), None if mean is None else Paper(mean)) for each, mean in papers.items()
    )


def _figure(presets: frozenset[str], tolerance: float | None, note: str) -> Section:
    return Section(
        "Figure 9", "Masks, dropout and SGD on Penn Treebank: minimum validation loss", digits=3,
        rows=_rows({"SGD": None, "dropout": None, "masks": BY_K["masks"]}),
        claims=(less("masks", "SGD"), less("masks", "dropout")),
        plots=(
            Curves({_label(each): each for each in COMPARED}, "validation loss per epoch", "epoch", "validation loss"),
            Bars("minimum validation loss"),
        ),
        tolerance=tolerance, better="lower", full=frozenset({"paper"}), smaller="a tenth of the text",
        needs="" if presets == SMALL else "a GPU", presets=presets, note=note, facts=facts,
    )  # fmt: skip


def _tables(presets: frozenset[str], tolerance: float | None, note: str) -> tuple[Section, ...]:
    make = partial(
        Section, "Table A6", digits=3, tolerance=tolerance, better="lower", full=frozenset({"paper"}),
        smaller="a tenth of the text", needs="" if presets == SMALL else "a GPU", presets=presets, note=note,
        plots=(Bars("minimum validation loss"),),
    )  # fmt: skip
    return (
        make("Masks on Penn Treebank: effect of k, with h_S = k h_F", rows=_rows(BY_K),
             claims=(less("masks", "masks, k = 3"), less("masks", "masks, k = 10"))),
        make("Masks on Penn Treebank: effect of the slow step size h_S at k = 5",
             rows=tuple(Row(f"h_S = {each.partition('h_S = ')[2] or 0.5}", metric(each, MINIMUM), Paper(mean))
                        for each, mean in BY_H_S.items())),
    )  # fmt: skip


def _on_test_text(title: str, ours: str, note: str) -> Section:
    return Section(
        "", title, digits=3,
        rows=_rows(dict.fromkeys(("SGD", "dropout", ours)), TEST),
        claims=(less(ours, "SGD", TEST), less(ours, "dropout", TEST)),
        plots=(Bars("test loss"),),
        note="The test text is seen by nobody's choices: p and epoch are chosen on the validation text. " + note,
    )  # fmt: skip


UNSEEN = _on_test_text(
    "Penn Treebank: test loss at the epoch of the minimum", "masks", "The same runs as in figure 9."
)  # fmt: skip
UNITS = _on_test_text(
    "Penn Treebank: masks by unit", "unit masks",
    "Unit masks are what swap_dropout makes of the dropout in the encoder layers (whole units, rescaled); dropout on "
    "attention probabilities, which has no weights, stays as it is. Otherwise as in figure 9.",
)  # fmt: skip

PLAIN = Section(
    "Figure 9", "The same with momentum 0", digits=3,
    rows=_rows(dict.fromkeys(WITHOUT_MOMENTUM)),
    claims=tuple(less("masks, momentum 0", f"{than}, momentum 0") for than in ("SGD", "dropout")),
    plots=(Curves({each: each for each in WITHOUT_MOMENTUM}, "validation loss per epoch", "epoch", "validation loss"),),
    full=frozenset({"paper"}), presets=frozenset({"paper"}), needs="a GPU", note=NOTE + " p is that of momentum 0.9.",
)  # fmt: skip


def facts(record: Record) -> Sequence[str]:
    """Return what the search found, when each method was best, the two momenta, and the differences of methods."""
    found = {name: search(record.config["p"], name).tried(record, name) for name in SEARCHED}
    said = [_search(name, {options["p"]: -score for options, score in tried}) for name, tried in found.items() if tried]
    curves = {name: record.curves(name, "validation loss per epoch") for name in ("SGD", "SGD, momentum 0")}
    said += [_course(name, curve[0]) for name, curve in curves.items() if 0 in curve]
    epochs = {name: stats.summarize(record.numbers(name, "epoch of the minimum").values()) for name in COMPARED}
    when = [f"{_label(name)} {each.mean:.1f}" for name, each in epochs.items() if each.n]
    said += [f"Epoch of the minimum, mean over seeds: {', '.join(when)}."] if when else []
    pairs = (("dropout", "SGD"), ("unit masks", "SGD"), ("unit masks", "dropout"))
    differences = {pair: gain(*pair, MINIMUM)(record) for pair in pairs}
    return said + [stats.sentence(*pair, each, "nats", digits=3) for pair, each in differences.items() if len(each) > 1]


def _search(name: str, losses: dict[float, float]) -> str:
    """Return the loss of each p, and the chosen one; at an edge of what was tried, a better one may lie outside."""
    tried = ", ".join(f"{loss:.3f} with {p:g}" for p, loss in losses.items())
    best = min(losses, key=losses.__getitem__)
    edge = {min(losses): ", the smallest that was tried", max(losses): ", the largest that was tried"}.get(best, "")
    return f"Search for p, one seed, {name}: {tried}; chosen {best:g}{edge if len(losses) > 1 else ''}."


def _course(name: str, curve: list[float]) -> str:
    """Return the place of a run's minimum, and whether it went on for long enough to have passed it."""
    label = name if "momentum" in name else f"{name}, momentum 0.9"
    place = curve.index(min(curve)) + 1
    end = "still falling" if place == len(curve) else f"then up to {curve[-1]:.3f}"
    return f"{label}, seed 0: minimum {min(curve):.3f} after {place} of {len(curve)} epochs, {end}."


SECTIONS = (
    _figure(SMALL, None, NOTE + SMALLER),
    _figure(WHOLE, SPREAD, NOTE + SHORT),
    PLAIN,
    *_tables(SMALL, None, NOTE + SMALLER),
    *_tables(WHOLE, SPREAD, NOTE + SHORT),
    UNSEEN,
    UNITS,
)
