"""Every test of this folder runs with flags at rest and with flags visible, unless its file says otherwise."""

import pytest
from helpers.optimizers import MODE


@pytest.fixture(autouse=True, params=["visible", "at rest"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODE, "at_rest", request.param == "at rest")
