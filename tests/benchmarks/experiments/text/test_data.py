"""GLUE's files as token ids, and batches of texts of similar length."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.experiments.text import data as text_data
from benchmarks.experiments.text import encoder as text_model
from benchmarks.experiments.text.data import Texts, batches


class Words:
    """A tokenizer with the interface that is used: one id for a letter, 9 between two texts."""

    pad_token_id = 0

    def __call__(self, *columns: Sequence[str], truncation: bool, max_length: int) -> dict[str, Any]:
        assert truncation
        joined = ["\n".join(row) for row in zip(*columns, strict=True)]
        ids = [[9 if letter == "\n" else ord(letter) - ord("a") + 10 for letter in each] for each in joined]
        return {"input_ids": [each[:max_length] for each in ids]}


@pytest.fixture(autouse=True)
def _words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_model, "tokenizer", lambda source: Words())
    text_data.load.cache_clear()


def write(folder: Path, name: str, part: str, *lines: str) -> None:
    (folder / "glue" / name).mkdir(parents=True, exist_ok=True)
    (folder / "glue" / name / f"{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_task_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    head = "index\tsentence1\tsentence2\tlabel"
    write(tmp_path, "RTE", "train", head, '0\ta"\tb\tnot_entailment', "1\tabcd\tc\tentailment")
    write(tmp_path, "RTE", "dev", head, "0\tc\td\tentailment")
    task = text_data.load("RTE", "minilm", 5, tmp_path)
    assert task.classes == 2
    assert task.train.y.tolist() == [1, 0]
    assert task.train.length.tolist() == [4, 5]  # the second is cut
    assert task.train.ids[1].tolist() == [10, 11, 12, 13, 9]
    assert task.dev.ids.tolist() == [[12, 9, 13]]
    assert task.dev.y.tolist() == [0]


def test_a_part_of_the_training_texts_is_always_the_same(tmp_path: Path) -> None:
    write(tmp_path, "SST-2", "train", "sentence\tlabel", *(f"{chr(97 + i)}\t{i % 2}" for i in range(26)))
    write(tmp_path, "SST-2", "dev", "sentence\tlabel", "a\t0", "b\t1")
    whole = text_data.load("SST-2", "minilm", 5, tmp_path)
    part = text_data.load("SST-2", "minilm", 5, tmp_path, most=6)
    assert (len(whole.train), len(part.train), len(part.dev)) == (26, 6, 2)
    text_data.load.cache_clear()
    assert torch.equal(part.train.ids, text_data.load("SST-2", "minilm", 5, tmp_path, most=6).train.ids)
    assert set(part.train.ids[:, 0].tolist()) != set(range(10, 16))  # not simply the first ones


def some(count: int) -> Texts:
    length = torch.arange(count) % 7 + 1
    ids = torch.where(torch.arange(7) < length[:, None], torch.arange(count)[:, None] + 1, 0)
    return Texts(ids, length, torch.arange(count))


def test_an_epoch_is_every_text_once_and_follows_from_the_seed() -> None:
    first, again = (list(islice(batches(some(40), 4, torch.Generator().manual_seed(3)), 10)) for _ in range(2))
    assert sorted(torch.cat([y for _, _, y in first]).tolist()) == list(range(40))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))


def test_a_batch_is_as_wide_as_its_longest_text_and_masks_the_rest() -> None:
    for ids, mask, y in islice(batches(some(40), 4, torch.Generator().manual_seed(3)), 10):
        assert ids.shape == mask.shape
        assert ids.shape[1] == int((y % 7 + 1).max())
        assert torch.equal(mask, ids != 0)


def test_little_is_padding_but_batches_do_not_come_in_order_of_length() -> None:
    drawn = list(islice(batches(some(64), 8, torch.Generator().manual_seed(0)), 8))
    widths = [ids.shape[1] for ids, _, _ in drawn]
    assert sum(widths) < 8 * 7
    assert widths != sorted(widths)
