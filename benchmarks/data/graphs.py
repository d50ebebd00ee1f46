"""Citation graphs with the splits of Yang, Cohen and Salakhutdinov (ICML 2016): Cora and Citeseer."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.data.locate import locate


class Graph(NamedTuple):
    """Nodes with the words in them, labels, edges and splits."""

    words: Tensor  # (nodes, words), each row divided by its sum
    labels: Tensor  # (nodes); -1 where there is none
    edges: Tensor  # (2, edges), both directions and each node's own
    weights: Tensor  # (edges), 1 / sqrt(degree of one end times degree of the other)
    splits: dict[str, Tensor]  # nodes of "train", "valid" and "test"


@cache
def load(name: str, folder: Path | None) -> Graph:
    """Return the graph of a name, from graphs/{name}.npz."""
    file = f"graphs/{name}.npz"
    with np.load(locate(name, [file], folder, None) / file) as found:
        arrays = {key: torch.from_numpy(found[key].astype(np.int64)) for key in found.files}
    nodes = len(arrays["labels"])
    counts = arrays["indptr"].diff()
    words = torch.zeros(nodes, int(arrays["indices"].max()) + 1)
    words[torch.arange(nodes).repeat_interleave(counts), arrays["indices"]] = 1.0
    pairs = arrays["edges"].T if arrays["edges"].shape[-1] == 2 else arrays["edges"]
    edges = torch.cat([pairs, pairs.flip(0), torch.arange(nodes).expand(2, -1)], dim=1)
    degree = edges[0].bincount(minlength=nodes).float()
    weights = (degree[edges[0]] * degree[edges[1]]).rsqrt()
    splits = {key: arrays[key] for key in ("train", "valid", "test")}
    return Graph(words / words.sum(1, keepdim=True).clamp_min(1), arrays["labels"], edges, weights, splits)
