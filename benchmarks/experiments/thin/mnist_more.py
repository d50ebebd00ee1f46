"""The wide MLP of thin-mnist on all images, and thin training together with dropout or weight decay on few.

Goes beyond the paper. Asks what a cheaper step is worth where there is little to overfit, and whether thin units do
the work of other regularization or add to it.
"""

from benchmarks.core.study import Study
from benchmarks.data import mnist as data
from benchmarks.experiments.thin import mnist
from benchmarks.experiments.thin.mnist import Config, Size

ALL = 55_000  # training images without those of validation
PLAIN = ("none", "dropout", "thin, k = 5")
TOGETHER = (*PLAIN, "thin, k = 5, and weight decay", "thin, k = 5, and dropout", "dropout and weight decay")

PRESETS = {
    "smoke": Config(2, (Size(100, 2, TOGETHER),), 1, batch=25, width=16, validation=200, timings=1, data="digits"),
    "cpu": Config(5, (Size(1000, 60, TOGETHER), Size(ALL, 4, PLAIN)), timings=6),
    "gpu": Config(10, (Size(1000, 200, TOGETHER), Size(ALL, 50, PLAIN))),
}

STUDY = Study("thin-mnist-more", PRESETS, mnist.comparisons, mnist.build, data=lambda config: data.NAMES[config.data])
BENCHMARK = STUDY.benchmark(
    [
        part
        for preset in ("cpu", "gpu")
        for size in PRESETS[preset].sizes
        for part in mnist.sections(size, frozenset({preset}))
    ]
)
