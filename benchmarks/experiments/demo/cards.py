"""The three panels of the demo's report, and the sentence that goes with each."""

from benchmarks.core.sections import Curves
from benchmarks.experiments.demo import finetune, thin
from benchmarks.experiments.demo.sentences import Race
from benchmarks.report.highlights import Card, Comparison, Cost

SLOW, SGD = "multirate, all biases", "SGD"
TASK, UPRIGHT, SPIRAL = "few digits, wide MLP", "transposed to upright digits", "4-turn spiral, slow biases"
ACCURACY = "test accuracy in %"

CARDS = (
    Card(
        "Thin training", "On k - 1 of k steps a random part of the hidden units is absent and not computed.",
        [Comparison(TASK, thin.THIN, other, "demo-thin", (thin.THIN, other)) for other in (thin.DROPOUT, thin.NONE)],
        Cost("A step takes {} of a plain step's time, one with dropout {}.", "demo-thin", (thin.THIN, thin.DROPOUT),
             "relative cost"),
        "You would use dropout and layers are wide.", "demo-thin",
        Curves(thin.SHOWN.methods, "accuracy by time", "seconds of training", ACCURACY, "seconds", ylim=(70, 97)),
    ),
    Card(
        "Fine-tuning", "The upper layers move at every step, the lower ones once in k steps, by k times as much.",
        [Comparison(UPRIGHT, "multirate", other, "demo-finetune", (finetune.MULTIRATE, other))
         for other in (finetune.FULL, finetune.FROZEN, finetune.LAST)],
        Cost("A step takes {} of a full step's time, one with the lower half frozen {}.", "demo-finetune",
             (finetune.MULTIRATE, finetune.FROZEN), "relative cost"),
        "You would fine-tune everything, seconds are short, and freezing costs accuracy.", "demo-finetune",
        Curves(finetune.SHOWN.methods, "accuracy by time", "seconds of training", ACCURACY, "seconds"),
    ),
    Card(
        "Several time scales", "Any group of parameters gets a period of its own: here all biases move once in five "
        "steps.",
        [Comparison(SPIRAL, "multirate", SGD, "spiral", (SLOW, SGD), "")],
        Cost("", "spiral", (), ""),
        "Parts of the network want different step sizes and plain SGD stalls.", "spiral",
        Curves({SGD: SGD, SLOW: SLOW}, "accuracy per evaluation", "epoch", ACCURACY, "epoch", ylim=(45, 95)),
    ),
)  # fmt: skip

RACES = {
    "demo-thin": Race("Thin training", thin.THIN, thin.DROPOUT, "few digits"),
    "demo-finetune": Race("Multirate fine-tuning", finetune.MULTIRATE, finetune.FULL, "upright digits"),
    "spiral": Race("Multirate training", SLOW, SGD, "the spiral", "accuracy per evaluation", "epoch", "epochs"),
}
