"""Real data are found, downloaded, or named in one line."""

from pathlib import Path

import pytest

from benchmarks.core.errors import UserError
from benchmarks.data import locate as data


def test_data_are_found_where_the_caller_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.txt").touch()
    monkeypatch.delenv("MRREG_DATA", raising=False)
    assert data.locate("Set", ["set/a.txt"], tmp_path, None) == tmp_path
    monkeypatch.setenv("MRREG_DATA", str(tmp_path))
    assert data.locate("Set", ["set/a.txt"], None, None) == tmp_path


@pytest.mark.parametrize("exists", [True, False])
def test_missing_data_are_one_line_with_files_and_place(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path if exists else tmp_path / "nowhere"
    with pytest.raises(UserError, match="--data-dir or MRREG_DATA") as caught:
        data.locate(
            "Set", ["set/a.txt", "set/b.txt"], folder, lambda root: pytest.fail("downloads into a named folder")
        )
    message = str(caught.value)
    assert message.startswith(f"Set: expected set/a.txt, set/b.txt in {folder}")
    assert ("not a folder" in message) is not exists
    assert "\n" not in message


def test_without_a_folder_a_download_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MRREG_DATA", raising=False)
    monkeypatch.setattr(data, "DEFAULT_FOLDER", tmp_path)

    def offline(root: Path) -> None:
        raise OSError("no network\nand more")

    with pytest.raises(UserError, match=r"a\.txt .*the download failed: OSError: no network\)"):
        data.locate("Set", ["a.txt"], None, offline)
    assert data.locate("Set", ["a.txt"], None, lambda root: (root / "a.txt").touch()) == tmp_path
    assert data.locate("Set", ["a.txt"], None, offline) == tmp_path
