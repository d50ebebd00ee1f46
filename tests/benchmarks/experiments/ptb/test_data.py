"""Penn Treebank: what is read, what is left out, and which files are refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.core.errors import UserError
from benchmarks.experiments.ptb import data as ptb_data
from benchmarks.experiments.ptb.data import penn_treebank

TRAIN = " a b a \n a <unk> c \n b d \n"
VALID = " a d \n"
TEST = " c \n c \n"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Counts of the three little texts; nothing read is kept for the next test."""
    monkeypatch.setattr(ptb_data, "TOKENS", {"train": 11, "valid": 3, "test": 4})
    yield
    penn_treebank.cache_clear()


def folder(root: Path, **parts: str) -> Path:
    (root / "ptb").mkdir()
    for part, text in ({"train": TRAIN, "valid": VALID, "test": TEST} | parts).items():
        (root / "ptb" / f"ptb.{part}.txt").write_text(text)
    return root


def test_words_are_numbered_by_frequency_and_every_line_ends(tmp_path: Path) -> None:
    text = penn_treebank(folder(tmp_path))
    # <eos> (3 times) and <unk> first, then a (3 times), b (2), c and d
    assert text.train.tolist() == [2, 3, 2, 0, 2, 1, 4, 0, 3, 5, 0]
    assert text.valid.tolist() == [2, 5, 0]
    assert text.test.tolist() == [4, 0, 4, 0]
    assert text.train.dtype == torch.int64
    assert text.words == 6


def test_with_fewer_words_the_rare_ones_are_unknown(tmp_path: Path) -> None:
    text = penn_treebank(folder(tmp_path), words=4)
    assert text.words == 4
    assert text.train.tolist() == [2, 3, 2, 0, 2, 1, 1, 0, 3, 1, 0]
    assert text.test.tolist() == [1, 0, 1, 0]


def test_a_part_is_the_beginning(tmp_path: Path) -> None:
    text = penn_treebank(folder(tmp_path), tokens=4, words=3, held_out=2)
    assert text.train.tolist() == [2, 1, 2, 0]  # `a` is the most frequent word of these four
    assert (len(text.valid), len(text.test)) == (2, 2)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ptb\.test\.txt: must have 4 tokens with <eos>, got 5"):
        penn_treebank(folder(tmp_path, test=" c \n c c \n"))


@pytest.mark.data
def test_real_text_has_the_known_counts(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    text = penn_treebank(data_dir)
    assert [len(part) for part in (text.train, text.valid, text.test)] == [929_589, 73_760, 82_430]
    assert text.words == 10_000
    assert int((text.train == 0).sum()) == 42_068
