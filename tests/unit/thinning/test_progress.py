import pytest

from mrreg.thinning.progress import Progress


def test_a_short_call_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    line = Progress("thin")
    line("looking")
    line.close()
    assert capsys.readouterr() == ("", "")


def test_a_long_call_keeps_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 4.0, 6.0, 9.0])
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    line = Progress("thin")
    line("looking at nothing yet")
    line("looking at the longest name")
    line("trying")
    line.close()
    shown = capsys.readouterr().err
    assert shown == "\rthin: looking at the longest name (6 s)\rthin: trying (9 s)                     \n"
