"""What the records say of thin training, for docs/when-it-helps.md: nobody types a result."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.core import stats
from benchmarks.report.highlights import WORDS, Comparison, Records

THIN, BOOST_1 = "thin, k = 5", "thin, k = 5, boost 1"


@dataclass(frozen=True)
class Task:
    """A setting of a study of thin training.

    Args:
        name: What is trained on what.
        record: The benchmark.
        rivals: Of thin training with k = 5, as the record names them.
        dropout: The rival that is dropout.
        none: The rival that regularizes nothing.
        prefix: Of the names in the record.
        ours: Thin training in the record.
        loss: The methods are compared by a loss.
    """

    name: str
    record: str
    rivals: tuple[str, ...]
    dropout: str = "dropout"
    none: str = "none"
    prefix: str = ""
    ours: str = THIN
    loss: bool = False

    def comparison(self, rival: str) -> Comparison:
        """Return thin training against a rival."""
        pair = (self.prefix + self.ours, self.prefix + rival)
        if self.loss:
            numbers = ("loss at equal seconds", "loss", "nats", 3, True)
            return Comparison(self.name, self.ours, rival, self.record, pair, *numbers)
        return Comparison(self.name, self.ours, rival, self.record, pair)


FEW = ("dropout", "none", BOOST_1)
MOST = ("dropout", "none", "weight decay", BOOST_1)
OWN = ("its own dropout", "no dropout")
ENCODER = ("SST-2, MiniLM", "thin-finetune", OWN, *OWN, "SST-2: ")
TASKS = (
    Task("Penn Treebank, characters, decoder", "thin-chars", MOST, loss=True),
    Task("Penn Treebank, frequent words, decoder", "thin-words", MOST, loss=True),
    Task("CIFAR-10, 1,000 images, vision transformer", "thin-vit", FEW[:2]),
    Task("CIFAR-10, 1,000 images, ResNet", "thin-convolutions", FEW, prefix="ResNet: "),
    Task("CIFAR-10, 1,000 images, plain CNN", "thin-convolutions", FEW, prefix="CNN: "),
    Task("diamonds, 1,000 rows, MLP", "thin-tabular", MOST),
    Task("diamonds, 1,000 rows, MLP", "thin-tabular", ("dropout",), ours=BOOST_1),
    Task("MNIST, 1,000 images, MLP", "thin-mnist", (*MOST, "masks by entry"), prefix="1000: "),
    Task(
        "MNIST, 1,000 images, MLP", "thin-mnist", ("dropout", "fresh draw at every step"), prefix="1000: ", ours=BOOST_1
    ),
    Task("MNIST, 5,000 images, MLP", "thin-mnist", MOST, prefix="5000: "),
    Task("MNIST, all images, MLP", "thin-mnist-more", FEW[:2], prefix="55000: "),
    *(
        Task(
            "MNIST, 1,000 images, MLP",
            "thin-mnist-more",
            (THIN, "dropout"),
            prefix="1000: ",
            ours=f"{THIN}, and {other}",
        )
        for other in ("dropout", "weight decay")
    ),
    Task(*ENCODER, ours="thin, k = 5, p = 0.1"),
    Task(*ENCODER, ours="thin, k = 5, p = 0.25"),
)
ROWS = tuple(task.comparison(rival) for task in TASKS for rival in task.rivals)


def sentences(records: Records, tasks: Sequence[Task] = TASKS) -> list[str]:
    """Return on which tasks thin training is ahead of dropout and of none, and what a step costs."""
    there = [task for task in tasks if task.record in records]
    return [
        *(_judged(records, there, rival, how) for rival in ("dropout", "none") for how in ("seconds", "epochs")),
        "A step takes, plain training's being 1: "
        + "; ".join(filter(None, (_cost(records, task) for task in there)))
        + ".",
        "Shares absent that did best on validation data: "
        + "; ".join(filter(None, (_chosen(records, task) for task in there)))
        + ".",
    ]


def _judged(records: Records, tasks: Sequence[Task], rival: str, how: str) -> str:
    found: dict[str, list[str]] = {word: [] for word in WORDS.values()}
    for task in tasks:
        comparison = task.comparison(task.dropout if rival == "dropout" else task.none)
        word = WORDS.get(stats.judge(comparison.differences(records, getattr(comparison, how))))
        if word:
            found[word].append(f"{task.name}{task.ours.removeprefix(THIN)}")
    said = "; ".join(f"{word}: {', '.join(map(_quoted, names))}" for word, names in found.items() if names)
    return f"Against {rival if rival == 'dropout' else 'no regularization'}, at equal {how}, thin training is {said}."


def _quoted(name: str) -> str:
    return f"*{name}*"


def _cost(records: Records, task: Task) -> str:
    ratios = [
        records[task.record].numbers(task.prefix + name, "relative cost").values() for name in (task.ours, task.dropout)
    ]
    if not all(ratios):
        return ""
    thin, dropout = (f"{median(each):.2f}" for each in ratios)
    return f"*{task.name}{task.ours.removeprefix(THIN)}* thin {thin}, dropout {dropout}"


def _chosen(records: Records, task: Task) -> str:
    """Return which shares of units were chosen for thin training; a pair is that of inputs and hidden units."""
    found = [result for run in records[task.record].runs.values() if run["method"] == task.prefix + task.ours
             for result in run["results"] if "p" in result]  # fmt: skip
    if not found:
        return ""
    p, heads = found[0]["p"], found[0].get("heads")
    shares = "/".join(f"{each:g}" for each in (p if isinstance(p, list) else [p]))
    return f"{_quoted(task.name + task.ours.removeprefix(THIN))} {shares}" + (f", heads {heads:g}" if heads else "")


def boosts(records: Records) -> str:
    """Return the table of thin-boost: the loss where no training has diverged, else how many have."""
    if "thin-boost" not in records:
        return ""
    record = records["thin-boost"]
    names = list(dict.fromkeys(run["method"] for run in record.runs.values()))
    settings = list(dict.fromkeys(name.rpartition(": ")[0] for name in names))
    methods = list(dict.fromkeys(name.rpartition(": ")[2] for name in names))

    def cell(setting: str, method: str) -> str:
        found = stats.summarize(record.numbers(f"{setting}: {method}", "loss").values())
        total = found.n + found.lost
        return "" if not total else f"{found.lost} of {total} diverged" if found.lost else f"{found.mean:.2f}"

    lines = [["", *methods], ["---"] * (len(methods) + 1)]
    lines += [[setting, *(cell(setting, method) for method in methods)] for setting in settings]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
