"""A network of two hidden layers, with dropout of its inputs and hidden units."""

from torch import nn

from benchmarks.experiments.regularizers import Method


def network(method: Method, sizes: tuple[int, int, int]) -> nn.Sequential:
    """Return two hidden layers; dropout's p is a pair, of the inputs and of the hidden units."""
    inputs, width, classes = sizes
    first, hidden = method.of("dropout", (0.0, 0.0))
    layers: list[nn.Module] = []
    for size, before, p in ((width, inputs, first), (width, width, hidden), (classes, width, hidden)):
        layers += [*([nn.Dropout(p)] if p else []), nn.Linear(before, size), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


PAIRS = ((0.2, 0.5), (0.5, 0.5))  # of dropout


def shares(inputs: float, hidden: float) -> tuple[tuple[str, float], ...]:
    """Return what thin training leaves out."""
    return ("inputs", inputs), ("hidden", hidden)
