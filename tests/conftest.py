"""Fixtures shared by all tests: fixed seeds, hypothesis profiles, real data where it is at hand."""

import gc
import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# no test downloads; the libraries read these when they are imported
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("dev", deadline=None, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session", autouse=True)
def _small_heap() -> None:
    """Garbage collections pass over what imports have left behind; many tests collect."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _forget_precision() -> None:
    """Accelerate otherwise keeps the one that its process began with."""
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state()


@pytest.fixture
def quick_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits take no time to time."""
    monkeypatch.setattr("mrreg.auditing.measure.SECONDS", 0.0)
    monkeypatch.setattr("mrreg.auditing.measure.LEAST", 1)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data, or a skip that says how to name one."""
    folder = os.environ.get("MRREG_DATA")
    if not folder:
        pytest.skip("MRREG_DATA does not name a folder with real data")
    return Path(folder)
