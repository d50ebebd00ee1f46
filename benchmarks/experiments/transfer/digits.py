"""Fine-tuning a small network pretrained on CIFAR-10 on MNIST: the transfer benchmark where ImageNet is not at hand."""

from dataclasses import replace

from benchmarks.experiments.transfer.config import RESNET20, TransferConfig
from benchmarks.experiments.transfer.experiment import STUDY, sections

PAIRS = (RESNET20,)
PRESETS = {
    "smoke": TransferConfig(
        seeds=1, few=1, pairs=PAIRS, epochs=1, pool=40, images=16, test_images=20, validation=20, pixels=32,
        batch=4, lrs=(0.001,), points=1, timings=1,
    ),
    "cpu": TransferConfig(
        seeds=5, few=5, pairs=PAIRS, epochs=4, images=640, test_images=2000, validation=1000, pixels=32, batch=16,
        points=2,
    ),
    "gpu": TransferConfig(seeds=5, few=5, pairs=PAIRS, epochs=4, images=5000, pixels=32),
    "paper": TransferConfig(seeds=20, few=20, pairs=PAIRS, epochs=10, pixels=32),
}  # fmt: skip
BENCHMARK = replace(STUDY, name="transfer-digits", presets=PRESETS).benchmark(sections([(RESNET20, PRESETS)]))
