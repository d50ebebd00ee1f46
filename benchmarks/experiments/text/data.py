"""GLUE tasks as token ids: GLUE's own tab-separated files, or written in that layout from the `datasets` package."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.core.errors import UserError
from benchmarks.core.training import Batches
from benchmarks.data.locate import locate

POOL = 8  # batches of similar length are made of so many batches that follow each other in the random order


@dataclass(frozen=True)
class Glue:
    """The name of a task in `datasets`, and the columns of its sentences and labels there and in GLUE's files."""

    name: str
    count: int  # of training texts
    texts: tuple[str, ...]
    columns: tuple[str, ...] = ("sentence1", "sentence2")
    label: str = "label"
    dev: str = "dev"  # "validation" in `datasets`


GLUE = {
    "SST-2": Glue("sst2", 67_349, ("sentence",), ("sentence",)),
    "RTE": Glue("rte", 2_490, ("sentence1", "sentence2")),
    "WNLI": Glue("wnli", 635, ("sentence1", "sentence2")),
    "QNLI": Glue("qnli", 104_743, ("question", "sentence"), ("question", "sentence")),
    "MNLI": Glue("mnli", 392_702, ("premise", "hypothesis"), label="gold_label", dev="dev_matched"),
}


@dataclass(frozen=True)
class Texts:
    """Token ids, (n, longest), padded on the right with `pad`; lengths, (n,); labels, (n,)."""

    ids: Tensor
    length: Tensor
    y: Tensor
    pad: int = 0

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Tensor | slice) -> "Texts":
        return Texts(self.ids[index], self.length[index], self.y[index], self.pad)

    def to(self, device: torch.device) -> "Texts":
        return Texts(self.ids.to(device), self.length.to(device), self.y.to(device), self.pad)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids cut to the longest text of the batch, which of them are no padding, and labels."""
        length = self.length[index]
        ids = self.ids[index][:, : int(length.max())]
        return ids, torch.arange(ids.shape[1], device=ids.device) < length[:, None], self.y[index]


@dataclass(frozen=True)
class Task:
    """The training and the dev texts of a GLUE task."""

    train: Texts
    dev: Texts
    classes: int

    def to(self, device: torch.device) -> "Task":
        return Task(self.train.to(device), self.dev.to(device), self.classes)


@cache
def load(name: str, source: str, longest: int, folder: Path | None = None, most: int | None = None) -> Task:
    """Read a task and turn its texts to token ids, once in the life of the process.

    Args:
        name: One of `GLUE`.
        source: Whose tokenizer, as in `text_model.encoder`.
        longest: Texts are cut at so many tokens.
        folder: As in `benchmarks.data.locate`.
        most: Training texts, drawn from all of them, always the same; None: all.

    Raises:
        UserError: If the files or the tokenizer are missing.
    """
    from benchmarks.experiments.text.encoder import tokenizer

    task, turn = GLUE[name], tokenizer(source)
    files = [f"glue/{name}/{part}.tsv" for part in ("train", task.dev)]
    root = locate(f"GLUE's {name}", files, folder, lambda root: _download(name, root))
    parts = [_rows(root / file, task) for file in files]
    labels = sorted({row[-1] for row in parts[0]})
    drawn = torch.randperm(len(parts[0]), generator=torch.Generator().manual_seed(0))[:most].tolist()
    parts[0] = [parts[0][index] for index in sorted(drawn)]
    train, dev = (_tokens(rows, labels, turn, longest) for rows in parts)
    return Task(train, dev, len(labels))


def _rows(file: Path, task: Glue) -> list[list[str]]:
    head, *lines = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
    names = head.split("\t")
    try:
        columns = [names.index(column) for column in (*task.columns, task.label)]
        return [[fields[column] for column in columns] for fields in (line.split("\t") for line in lines)]
    except (ValueError, IndexError) as error:
        raise UserError(f"{file}: must have the columns {', '.join((*task.columns, task.label))}: {error}") from error


def _tokens(rows: list[list[str]], labels: list[str], turn: Any, longest: int) -> Texts:
    columns = [list(column) for column in zip(*(row[:-1] for row in rows), strict=True)]
    found = turn(*columns, truncation=True, max_length=longest)["input_ids"]
    pad = turn.pad_token_id
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(each) for each in found], batch_first=True, padding_value=pad)
    y = torch.tensor([labels.index(row[-1]) for row in rows])
    return Texts(ids, torch.tensor([len(each) for each in found]), y, pad)


def _download(name: str, root: Path) -> None:
    from datasets import load_dataset  # needed where there is a network only

    task = GLUE[name]
    data = load_dataset("nyu-mll/glue", task.name)
    folder = root / "glue" / name
    folder.mkdir(parents=True, exist_ok=True)
    for part, split in (("train", "train"), (task.dev, task.dev.replace("dev", "validation"))):
        lines = ["\t".join((*task.columns, task.label))]
        for row in data[split]:
            texts = (" ".join(row[column].split()) for column in task.texts)
            lines.append("\t".join((*texts, str(row["label"]))))
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def batches(texts: Texts, size: int, generator: torch.Generator) -> Batches:
    """Return batches without end, epoch after epoch, each epoch in a new order; a short last batch is left out.

    Texts of similar length share a batch, so that little of it is padding: every `POOL` batches of the random order are
    sorted by length, cut into batches, and these are put in random order again.
    """
    if len(texts) < size:
        raise ValueError(f"batches: size must be at most the number of texts, {len(texts)}, got {size}.")
    length = texts.length.cpu()

    def order(generator: torch.Generator) -> list[Tensor]:
        drawn = torch.randperm(len(texts), generator=generator)[: len(texts) // size * size]
        found: list[Tensor] = []
        for part in torch.split(drawn, POOL * size):
            ranked = part[length[part].argsort(stable=True)].view(-1, size)
            found.extend(ranked[torch.randperm(len(ranked), generator=generator)])
        return found

    return Batches(order, lambda index: texts.batch(index.to(texts.y.device)), generator)
