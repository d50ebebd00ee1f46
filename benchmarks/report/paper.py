"""Every table and figure of the paper, in its order, so that a report can leave none out.

The paper's numbers stand where they are used: in the sections of each benchmark's module.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """A table or figure, and the benchmark that reproduces it; empty where there is nothing to measure."""

    title: str
    benchmark: str = ""


ITEMS = {
    "Figure 1": Item("The principle of two time scales (a drawing)"),
    "Figure 2": Item("Patch-augmented CIFAR-10, WideResNet-16", "patches"),
    "Figure 3": Item("Fast and slow parts of a convolutional network (a drawing)"),
    "Figure 4": Item("Fine-tuning ResNet-34 on CIFAR-10", "transfer"),
    "Figure 5": Item("Fine-tuning ResNet-34 on CIFAR-10, linear learning rate decay", "transfer"),
    "Figure 6": Item("Fine-tuning ResNet-50 on CIFAR-100", "transfer"),
    "Figure 7": Item("Fine-tuning DistilBERT on SST-2", "text"),
    "Figure 8": Item("Masks on MNIST, single hidden layer", "mnist"),
    "Figure 9": Item("Masks on Penn Treebank, transformer", "ptb"),
    "Figure A10": Item("Fine-tuning ResNet-34 on CIFAR-10, weight decay", "transfer"),
    "Figure A11": Item("Slow biases on the 4-turn spiral", "spiral"),
    "Figure A12": Item("Slow biases on the spiral: time scale, step size, or both?", "spiral"),
    "Figure A13": Item("Slow biases on the spiral: which biases?", "spiral"),
    "Figure A14": Item("Slow biases of the last layer, ResNet-34 on CIFAR-10", "biases"),
    "Table 1": Item("Linear drift or not, DistilBERT on SST-2", "text"),
    "Table 2": Item("Same learning rate for fast and slow parameters, DistilBERT on SST-2", "text"),
    "Table A3": Item("GLUE tasks, DistilBERT", "text"),
    "Table A4": Item("Effect of k, DistilBERT on SST-2", "text"),
    "Table A5": Item("Masks on MNIST: effect of k and of the slow step size", "mnist"),
    "Table A6": Item("Masks on Penn Treebank: effect of k and of the slow step size", "ptb"),
}
