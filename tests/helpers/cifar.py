"""Files of CIFAR-100 as torchvision keeps them, with few images."""

import pickle
from pathlib import Path

import numpy as np
import pytest


def write_cifar100(root: Path, train: int, test: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write few images below a folder, and let torchvision take them although their checksums are not its own."""
    monkeypatch.setattr("torchvision.datasets.CIFAR100._check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    place = root / "cifar-100-python"
    place.mkdir()
    for name, count in (("train", train), ("test", test)):
        pixels = np.arange(count * 3072).reshape(count, 3072).astype(np.uint8)
        (place / name).write_bytes(pickle.dumps({"data": pixels, "fine_labels": list(range(count))}))
    (place / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(i) for i in range(100)]}))
