"""What the report shows of the comparison on few MNIST images."""

import itertools
from collections.abc import Sequence
from functools import partial

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Claim, Curves, Row, Section, gain, metric
from benchmarks.experiments.mnist.small_methods import FEW, METHODS, chosen, comparison_key, masks, validation

PICKED = (masks("hidden", 5, rescale=True), masks("input", 5, rescale=True))  # before anything was run
EPOCHS, SECONDS = "accuracy", "accuracy at equal seconds"

NOTE = (
    "784-800-10, batch 50, h = 0.1, momentum 0; every seed draws its own training images. p is chosen among as many "
    "values for each method, by accuracy on 5,000 other training images; test accuracy is that of the last epoch. "
    "There are many kinds of masks and one dropout: that the best of many rows is above dropout's says little, so the "
    "claims are about two kinds that were named beforehand."
)
AT_SECONDS = (
    " Equal seconds are those that plain SGD needs for its epochs, from the cost of a step measured with all methods "
    "in turns in one process."
)


def sections(images: int, methods: Sequence[str], presets: frozenset[str]) -> tuple[Section, ...]:
    """The comparison at equal epochs and at equal seconds, and what a step costs, for records of some presets."""
    size = f"{images:,} training images"

    def rows(name: str) -> tuple[Row, ...]:
        return tuple(Row(each, metric(comparison_key(images, each), name)) for each in methods)

    return (
        Section(
            "", f"MNIST, {size}: equal epochs", "%",
            rows=rows(EPOCHS), claims=_claims(images, EPOCHS), plots=(Bars("test accuracy in %"),),
            note=NOTE, facts=partial(_facts, images=images, name=EPOCHS), presets=presets,
        ),
        Section(
            "", f"MNIST, {size}: equal seconds", "%",
            rows=rows(SECONDS), claims=_claims(images, SECONDS),
            plots=(
                Curves({each: comparison_key(images, each) for each in FEW}, "accuracy per evaluation",
                       "training time in epochs of plain SGD", "test accuracy in %", x="plain epochs per evaluation"),
                Bars("test accuracy in %"),
            ),
            note=NOTE + AT_SECONDS, facts=partial(_facts, images=images, name=SECONDS), presets=presets,
        ),
        Section(
            "", f"MNIST, {size}: seconds of a training step, plain SGD = 1",
            rows=rows("relative cost"),
            note="With the p that was chosen. Masks by unit compute only the kept units in k - 1 of k steps.",
            presets=presets,
        ),
    )  # fmt: skip


def _claims(images: int, name: str) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            f"{ours}: more accurate than {theirs}.",
            gain(comparison_key(images, ours), comparison_key(images, theirs), name),
        )
        for ours, theirs in itertools.product(PICKED, ("SGD", "dropout"))
    )


def _facts(record: Record, *, images: int, name: str) -> list[str]:
    """Which p each method got, and how the masks that do best on the validation split do on the test images."""
    picked = {each: chosen(record, images, each) for each in METHODS if record.results(comparison_key(images, each))}
    best = {each: validation(record, images, each, p) for each, p in picked.items()}
    masked = [each for each in best if METHODS[each].kind == "masks"]
    if not masked or "dropout" not in best:
        return []
    top = max(masked, key=best.__getitem__)
    margin = stats.summarize(gain(comparison_key(images, top), comparison_key(images, "dropout"), name)(record))
    return [
        "Chosen p (input/hidden): " + "; ".join(f"{each} {p[0]:g}/{p[1]:g}" for each, p in picked.items()) + ".",
        f"Of all masks, {top} does best on the validation split ({best[top]:.2f} %, dropout {best['dropout']:.2f} %). "
        f"On the test images it is {margin.mean:+.2f} +- {margin.half:.2f} points from dropout (95 % interval).",
    ]
