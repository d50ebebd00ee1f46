"""Real data: from a folder the caller names, else a download, else one clear error. Never made-up data."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.core.errors import UserError

DEFAULT_FOLDER = Path(__file__).parents[2] / "data"  # ignored by git


def locate(name: str, files: Sequence[str], folder: Path | None, download: Callable[[Path], object] | None) -> Path:
    """The folder below which all `files` lie.

    Args:
        name: What the data set is called in messages.
        files: Paths relative to the folder, without which the data set is not usable.
        folder: What the caller named (`--data-dir`); None means `MRREG_DATA`, else `data/` in the repository.
        download: Puts the files below the folder it is given; tried only where the caller named no folder.

    Raises:
        UserError: If files are missing, naming each and where it was expected.
    """
    named = folder or (Path(os.environ["MRREG_DATA"]) if os.environ.get("MRREG_DATA") else None)
    root = named or DEFAULT_FOLDER
    reason = ""
    if named is None and download and _missing(root, files):
        try:
            download(root)
        except Exception as error:  # whatever the loader raises without a network
            first = (str(error).splitlines() or [""])[0]
            reason = f" (the download failed: {type(error).__name__}: {first})"
    if missing := _missing(root, files):
        where = f"{root}, which is not a folder" if named and not root.is_dir() else str(root)
        raise UserError(
            f"{name}: expected {', '.join(missing)} in {where}{reason}. "
            "Name the folder that holds them with --data-dir or MRREG_DATA."
        )
    return root


def _missing(root: Path, files: Sequence[str]) -> list[str]:
    return [file for file in files if not (root / file).exists()]
