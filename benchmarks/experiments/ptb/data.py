"""Penn Treebank by words, as one long row of numbers for each of its three parts; wrong files are refused."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.core.errors import UserError
from benchmarks.data.locate import locate

PARTS = ("train", "valid", "test")
FILES = tuple(f"ptb/ptb.{part}.txt" for part in PARTS)
TOKENS = {"train": 929_589, "valid": 73_760, "test": 82_430}  # with one <eos> a line
END, UNKNOWN = "<eos>", "<unk>"


@dataclass(frozen=True)
class Text:
    """The three parts as numbers of words, (tokens,) each; `words` is how many different words there are."""

    train: Tensor
    valid: Tensor
    test: Tensor
    words: int

    def to(self, device: torch.device) -> "Text":
        return Text(self.train.to(device), self.valid.to(device), self.test.to(device), self.words)


@cache
def penn_treebank(
    folder: Path | None, tokens: int | None = None, words: int | None = None, held_out: int | None = None
) -> Text:
    """Penn Treebank, or its beginning with fewer different words; read once in the life of the process.

    Args:
        folder: Holds `ptb/ptb.{train,valid,test}.txt`; see `benchmarks.data.locate`.
        tokens: How much of the training text is used, from its beginning; None is all of it.
        words: How many words keep a number of their own, the most frequent ones of that text; the others become
            `<unk>`. None keeps all words.
        held_out: How much of the validation and of the test text is used, each from its beginning.

    Raises:
        UserError: If files are missing, or have other numbers of tokens than Penn Treebank.
    """
    root = locate("Penn Treebank", FILES, folder, None)
    parts = {part: _read(root / file, part) for part, file in zip(PARTS, FILES, strict=True)}
    train = parts["train"][:tokens]
    number = _numbers(train if words is not None else parts["train"], words)

    def numbered(text: Iterable[str]) -> Tensor:
        return torch.tensor([number.get(word, number[UNKNOWN]) for word in text])

    valid, test = (numbered(parts[part][:held_out]) for part in PARTS[1:])
    return Text(numbered(train), valid, test, len(number))


def _read(path: Path, part: str) -> list[str]:
    """The words of a file, with `<eos>` after each line; whatever is not the usual file is refused."""
    text = [word for line in path.read_text(encoding="utf-8").splitlines() for word in (*line.split(), END)]
    if len(text) != TOKENS[part]:
        raise UserError(
            f"{path}: must have {TOKENS[part]:,} tokens with <eos>, got {len(text):,}. Get the usual ptb.{part}.txt."
        )
    return text


def _numbers(text: Iterable[str], words: int | None) -> dict[str, int]:
    """A number for each of the most frequent words, in that order, after `<eos>` and `<unk>`."""
    count = Counter(text)
    frequent = sorted(count.keys() - {END, UNKNOWN}, key=lambda word: (-count[word], word))
    return {word: number for number, word in enumerate([END, UNKNOWN, *frequent][:words])}
