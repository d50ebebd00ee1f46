"""DistributedDataParallel and fully_shard on two gloo ranks: every check of `all_checks.py` is a test."""

from pathlib import Path

import pytest

from distributed import launcher as ranks
from distributed.all_checks import CHECKS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the two ranks have left what went wrong."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks.run("distributed.all_checks", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_on_two_ranks(finished: Path, name: str) -> None:
    assert ranks.outcome(finished, name) == ""
