"""The README and the pages of the documentation, cut into sections and blocks of code."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """What stands below one heading: its readable name, and the (language, text) of its blocks in order."""

    name: str
    blocks: list[tuple[str, str]]

    @property
    def programs(self) -> list[str]:
        """Python that runs as printed, each block after the one before; of a difference, the new side."""
        return [_new_side(text) if language == "diff" else text for language, text in self._running()]

    def _running(self) -> list[tuple[str, str]]:
        return [block for block in self.blocks if block[0] in ("python", "diff")]


def sections() -> list[Section]:
    """The sections of all pages; a section needs nothing that an earlier one has made."""
    return [_section(page, text) for page in PAGES for text in _cut(page.read_text(encoding="utf-8"))]


def lone_blocks() -> list[str]:
    """Blocks that run on a model of their own: those in the language `py`."""
    return [text for section in sections() for language, text in section.blocks if language == "py"]


def _cut(text: str) -> list[str]:
    return re.split(r"^(?=###? )", text, flags=re.MULTILINE)


def _section(page: Path, text: str) -> Section:
    heading = text.splitlines()[0].strip("# ") if text else ""
    return Section(f"{page.relative_to(ROOT)}: {heading}", FENCE.findall(text))


def _new_side(difference: str) -> str:
    return "".join(line[2:] for line in difference.splitlines(keepends=True) if not line.startswith("-"))
