"""The report of the transfer benchmark: every comparison at equal epochs and at equal seconds."""

from collections.abc import Iterable
from functools import partial

from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Claim, Curves, Row, Section, Values, gain, metric
from benchmarks.experiments.transfer.config import (
    CONSTANT,
    DECAY,
    MOBILENET,
    OWN,
    PRESETS,
    RESNET20,
    RESNET34,
    RESNET50,
    WEIGHT_DECAY,
    Pair,
    search,
)
from benchmarks.experiments.transfer.methods import (
    BLOCK,
    FC,
    FULL,
    METHODS,
    MULTIRATE,
    MULTIRATE_BLOCK,
    MULTIRATE_HELD,
)
from benchmarks.experiments.transfer.models import SOURCES

EPOCHS, SECONDS = "accuracy", "accuracy at equal seconds"
FIGURES = {
    (RESNET34, CONSTANT): "Figure 4", (RESNET34, DECAY): "Figure 5", (RESNET34, WEIGHT_DECAY): "Figure A10",
    (RESNET50, CONSTANT): "Figure 6", (MOBILENET, CONSTANT): "Figure 4", (MOBILENET, DECAY): "Figure 5",
    (MOBILENET, WEIGHT_DECAY): "Figure A10",
}  # fmt: skip
FASTER = 1.8  # "almost half the time"
MARGIN = 0.5  # points that "without reducing the accuracy" may cost

NOTE = (
    "SGD with momentum 0.9, no augmentation; BatchNorm in training mode everywhere, in frozen and slow parts too. "
    "All methods of a seed share training images, their order and the new last layer. The figures of the paper have "
    "no numbers to compare with; what it says of them stands as claims. The last block is stage3 of the MobileNet, "
    "layer3 of the ResNet-20, layer4 of other ResNets. Gradual unfreezing (Howard and Ruder, 2018) adds one part an "
    "epoch."
)
CPU = PRESETS["cpu"]
ABOUT_PAIR = {
    RESNET20: (
        " Beyond the paper: a small network that knows the photographs of CIFAR-10 learns the digits of MNIST (28 "
        "pixels with a border of two), from as many images in as many epochs as the record's configuration says."
    ),
    MOBILENET: (
        f" Preset cpu: a {SOURCES[MOBILENET.network].title} is fine-tuned on {CPU.images:,} images of CIFAR-10 at "
        f"{CPU.pixels} pixels (drawn anew for each seed) in batches of {CPU.batch} for {CPU.epochs} epochs, instead of "
        f"a ResNet-34 on all of them; {CPU.test_images:,} test images."
    ),
}
ABOUT = {
    CONSTANT: " Everyone has the paper's learning rate, 0.001.",
    OWN: " Everyone has the learning rate that does best for it at equal epochs on other images, of those tried.",
    DECAY: " From the paper's 0.005 linearly to 0 at the end of each run; equal seconds are runs of their own.",
    WEIGHT_DECAY: " Learning rate 0.001, weight decay 5e-4.",
}
AT_SECONDS = (
    " Every method takes as many steps as the seconds of full fine-tuning buy, from one timing of all methods in turns "
    "(time of the process on one thread on a CPU, the clock's on a GPU; preparing images is not in it)."
)


SHOWN = ((MOBILENET, ("smoke", "cpu")), (RESNET34, ("gpu", "paper")), (RESNET50, ("gpu", "paper")))


def sections(shown: Iterable[tuple[Pair, Iterable[str]]] = SHOWN) -> tuple[Section, ...]:
    """Of each pair and variant two sections, and of each pair what a step costs, in the presets that have it."""
    found = []
    for pair, presets in shown:
        for variant in pair.variants:
            found += [_compared(pair, variant, name, frozenset(presets)) for name in (EPOCHS, SECONDS)]
        found.append(_speed(pair, frozenset(presets)))
    return tuple(found)


def _key(pair: Pair, variant: str, method: str) -> str:
    return f"{pair.title}: {variant}: {method}"


def _compared(pair: Pair, variant: str, name: str, presets: frozenset[str]) -> Section:
    methods = {method: _key(pair, variant, method) for method in pair.methods(variant)}
    x, y, label = ("epoch", "accuracy by epoch", "epoch")
    if name == SECONDS:
        x, y, label = "seconds", "accuracy by time", "seconds of training"
    curves = Curves(methods, y, label, "test accuracy in %", x=x)
    return Section(
        FIGURES.get((pair, variant), ""),
        f"{pair.title}, {variant}: equal {'epochs' if name == EPOCHS else 'seconds'}",
        "%",
        rows=tuple(Row(method, metric(each, name)) for method, each in methods.items()),
        claims=_claims(pair, variant, name),
        plots=(curves, Bars("test accuracy in %")),
        full=frozenset({"paper"}),
        presets=presets,
        needs="" if pair in ABOUT_PAIR else "weights pretrained on ImageNet",
        note=NOTE + ABOUT_PAIR.get(pair, "") + ABOUT[variant] + (AT_SECONDS if name == SECONDS else ""),
        facts=partial(_facts, pair=pair) if variant == OWN and name == EPOCHS else lambda record: (),
    )


def _claims(pair: Pair, variant: str, name: str) -> tuple[Claim, ...]:
    """The paper's: no less accurate than full fine-tuning, more than others; at equal seconds, more than all."""

    def more(one: str, other: str, above: float = 0.0) -> Claim:
        text = f"{one}: {'less than half a point below' if above else 'more accurate than'} {other}"
        return Claim(text, gain(_key(pair, variant, one), _key(pair, variant, other), name), above)

    ours = [each for each in (MULTIRATE, MULTIRATE_BLOCK, MULTIRATE_HELD) if each in pair.methods(variant)]
    others = [each for each in (FC, BLOCK) if each in pair.methods(variant)]
    full = [more(each, FULL, -MARGIN if name == EPOCHS else 0.0) for each in ours]
    return (*full, *(more(each, other) for each in ours[:1] for other in others))


def _speed(pair: Pair, presets: frozenset[str]) -> Section:
    def faster(name: str) -> Values:
        def values(record: Record) -> list[float]:
            timings = [result["all"] for result in record.results(f"{pair.title}: cost").values()]
            return [
                full / own for all_of_it in timings for full, own in zip(all_of_it[FULL], all_of_it[name], strict=True)
            ]

        return values

    return Section(
        "",
        f"{pair.title}: how many epochs fit into the time of one of full fine-tuning",
        rows=tuple(Row(name, faster(name)) for name, method in METHODS.items() if not method.gradual),
        claims=(Claim(f"{MULTIRATE}: more than {FASTER} times as fast", faster(MULTIRATE), FASTER),),
        center="median",
        presets=presets,
        note="Forward, backward and optimizer of a whole cycle; all methods in turns in one process."
        + (" Seconds of the process, on one thread." if pair in ABOUT_PAIR else ""),
    )


def _facts(record: Record, *, pair: Pair) -> list[str]:
    """Return what the search found, for every method at every learning rate."""
    tuned = search(pair, record.config["lrs"])
    found = {method: tuned.tried(record, method) for method in pair.methods(OWN)}
    return [
        f"{method}: "
        + ", ".join(
            f"lr {options['lr']:g} {score:.1f} %" + (" (chosen)" if options == tuned.chosen(record, method) else "")
            for options, score in tried
        )
        + " on the validation images."
        for method, tried in found.items()
        if tried
    ]
