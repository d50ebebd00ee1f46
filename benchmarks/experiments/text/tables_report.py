"""The report of multirate fine-tuning: figure 7 and tables 1, 2, A3 and A4."""

from collections.abc import Mapping, Sequence

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Claim, Curves, Paper, Row, Section, Values, gain, metric
from benchmarks.experiments.text.recipes import Recipe

ABLATIONS = {
    part: (
        Recipe(fast=fast), Recipe(fast=fast, drift=False), Recipe(fast=fast, slow_lr="per_gradient"),
        Recipe(fast=fast, k=3), Recipe(fast=fast, k=10),
    )
    for part, fast in (("classifier", "head"), ("last layer", "last"))
}  # fmt: skip
FULL, HEAD_ONLY, LAST_ONLY = Recipe(), Recipe(trained="head"), Recipe(trained="last")
FIGURE = (FULL, ABLATIONS["classifier"][0], ABLATIONS["last layer"][0], HEAD_ONLY, LAST_ONLY)
METHODS = {
    "SGD": (*FIGURE, *ABLATIONS["classifier"][1:], *ABLATIONS["last layer"][1:]),
    "AdamW": (FULL, *(ABLATIONS[part][which] for part in ABLATIONS for which in (0, 2))),
}
"""Of each optimizer, the most important first."""

TABLE_K = {  # accuracy and seconds
    "classifier": {
        3: (Paper(89.26, 88.69, 90.01), 245), 5: (Paper(89.43, 87.92, 90.28), 198),
        10: (Paper(88.53, 84.79, 89.79), 180),
    },
    "last layer": {
        3: (Paper(88.91, 87.42, 90.06), 264), 5: (Paper(89.70, 89.35, 90.23), 224),
        10: (Paper(88.65, 87.97, 89.73), 207),
    },
}  # fmt: skip
TABLE1 = {"classifier": Paper(88.69, 87.53, 89.68), "last layer": Paper(89.54, 88.91, 90.44)}  # no drift
TABLE2 = {"classifier": Paper(88.78, 87.64, 89.90), "last layer": Paper(89.29, 88.08, 89.95)}  # h_S = h_F
TABLE_GLUE = {  # full and multirate: accuracy (median of 5) and seconds
    "WNLI": ((54.2, 20), (54.9, 11)), "RTE": ((57.8, 192), (57.8, 127)), "SST-2": ((89.7, 380), (89.7, 224)),
    "QNLI": ((86.6, 14148), (86.4, 10602)), "MNLI": ((75.3, 14617), (75.4, 10797)),
}  # fmt: skip

NOTE = (
    "The paper fine-tunes DistilBERT on all of SST-2, with SGD, momentum 0.9, h / k = 1e-4, batch 16. The preset cpu "
    "fine-tunes MiniLM (6 layers, width 384) on 512 training texts drawn by the seed, cut at 32 tokens, for 2 epochs, "
    "with h / k = 2e-3 (AdamW: 5e-5), without dropout; accuracy is that of the last epoch on all 872 dev texts. "
    "Seconds are CPU seconds of the training steps, one thread. Our classifier is one linear layer on the mean output."
)


def name(recipe: Recipe, optimizer: str = "SGD", task: str = "SST-2") -> str:
    """Return the method's name in the record."""
    return f"{task}, {optimizer}: {recipe.name}"


def faster(method: str, than: str) -> Values:
    """Return seconds of another method over those of this one, paired by seed."""

    def values(record: Record) -> list[float]:
        ours, theirs = record.numbers(method, "seconds"), record.numbers(than, "seconds")
        return [theirs[seed] / ours[seed] for seed in sorted(ours.keys() & theirs.keys())]

    return values


def sections() -> tuple[Section, ...]:
    """Return one section a table or figure, then the same questions with AdamW."""
    small, all_of_it = frozenset({"smoke", "cpu", "gpu"}), frozenset({"paper"})
    return (
        _figure(),
        _against("Table 1", "Linear drift or not", 1, ("drift", "no drift"), TABLE1, "drift better than no drift"),
        _against("Table 2", "Larger or same step size for the slow part", 2, ("h_S = k h_F", "h_S = h_F"), TABLE2,
                 "h_S = k h_F better than h_S = h_F"),
        *_ks(), *_glue(tuple(TABLE_GLUE)[:3], small), *_glue(tuple(TABLE_GLUE), all_of_it), _adamw(),
    )  # fmt: skip


def _no_worse(text: str, method: str, than: str) -> Claim:
    return Claim(f"{text}: no worse than full fine-tuning by more than a point", gain(method, than, "accuracy"), -1)


def _figure() -> Section:
    full, fc, last, *_ = (name(recipe) for recipe in FIGURE)
    return Section(
        "Figure 7", "Fine-tuning on SST-2: full, multirate, and later layers only", "%",
        rows=tuple(Row(recipe.name, metric(name(recipe), "accuracy")) for recipe in FIGURE),
        claims=(
            _no_worse("classifier fast", fc, full),
            _no_worse("last layer fast", last, full),
            Claim("classifier fast: more accurate than the classifier only", gain(fc, name(HEAD_ONLY), "accuracy")),
            Claim("last layer fast: more accurate than the last layer only", gain(last, name(LAST_ONLY), "accuracy")),
            Claim("classifier fast: at least 1.7 times as fast as full fine-tuning", faster(fc, full), above=1.7),
        ),
        plots=(
            Curves({recipe.name: name(recipe) for recipe in FIGURE}, "accuracy per epoch", "seconds of training",
                   "dev accuracy [%]", x="seconds per epoch"),
            Bars("dev accuracy [%]"),
        ),
        note=NOTE + " The figure's own numbers are not in the paper's text.",
    )  # fmt: skip


def _against(
    item: str, title: str, which: int, words: tuple[str, str], without: Mapping[str, Paper], claim: str
) -> Section:
    """Return the table of the paper's method beside one ablation, for both fast parts."""
    pairs = {part: (name(recipes[0]), name(recipes[which])) for part, recipes in ABLATIONS.items()}
    return Section(
        item, title, "%",
        rows=tuple(
            Row(f"{part} fast, {word}", metric(method, "accuracy"), paper)
            for part, pair in pairs.items()
            for word, method, paper in zip(words, pair, (TABLE_K[part][5][0], without[part]), strict=True)
        ),
        claims=tuple(Claim(f"{part} fast: {claim}", gain(*pair, "accuracy")) for part, pair in pairs.items()),
        tolerance=0.5, note=NOTE,
    )  # fmt: skip


def _ks() -> tuple[Section, ...]:
    methods = {
        (part, k): name(next(recipe for recipe in recipes if recipe.k == k))
        for part, recipes in ABLATIONS.items()
        for k in (3, 5, 10)
    }
    return (
        Section(
            "Table A4", "Effect of k: accuracy", "%",
            rows=tuple(
                Row(f"{part} fast, k = {k}", metric(method, "accuracy"), TABLE_K[part][k][0])
                for (part, k), method in methods.items()
            ),
            claims=tuple(
                Claim(f"{part} fast: k = 5 better than k = {k}",
                      gain(methods[part, 5], methods[part, k], "accuracy"))
                for part in ABLATIONS for k in (3, 10)
            ),
            tolerance=0.5, note=NOTE,
        ),
        Section(
            "Table A4", "Effect of k: seconds of full fine-tuning over those of multirate",
            center="median",
            rows=tuple(
                Row(f"{part} fast, k = {k}", faster(method, name(FULL)), Paper(380 / TABLE_K[part][k][1]))
                for (part, k), method in methods.items()
            ),
            tolerance=0.2,
            note="The paper's seconds of full fine-tuning (380) are those of its GLUE table. Ours: CPU seconds.",
        ),
    )  # fmt: skip


def _glue(tasks: Sequence[str], presets: frozenset[str]) -> tuple[Section, ...]:
    methods = {task: (f"{task}: full", f"{task}: multirate") for task in tasks}
    methods["SST-2"] = name(FULL), name(ABLATIONS["last layer"][0])
    note = (
        "The paper's k, h / k, weight decay and fast blocks for each task, batch 16 (MNLI 32). The preset cpu takes "
        "320 training texts of WNLI and RTE, cut at 64 tokens, for one epoch, on MiniLM; of SST-2 what figure 7 has. "
        "QNLI and MNLI have no data here; the preset paper runs them."
    )
    return (
        Section(
            "Table A3", "GLUE tasks: accuracy", "%", center="median", digits=1,
            rows=tuple(
                Row(f"{task}, {word}", metric(method, "accuracy"), Paper(paper[0]))
                for task, pair in methods.items()
                for word, method, paper in zip(("full", "multirate"), pair, TABLE_GLUE[task], strict=True)
            ),
            claims=tuple(
                Claim(f"{task}: multirate no worse than full by more than a point", gain(two, full, "accuracy"),
                      above=-1)
                for task, (full, two) in methods.items()
            ),
            tolerance=1.0, note=note, presets=presets,
        ),
        Section(
            "Table A3", "GLUE tasks: seconds of full fine-tuning over those of multirate", center="median",
            rows=tuple(
                Row(task, faster(two, full), Paper(TABLE_GLUE[task][0][1] / TABLE_GLUE[task][1][1]))
                for task, (full, two) in methods.items()
            ),
            claims=tuple(
                Claim(f"{task}: multirate faster", faster(two, full), above=1) for task, (full, two) in methods.items()
            ),
            tolerance=0.2, note=note, presets=presets,
        ),
    )  # fmt: skip


def _adamw() -> Section:
    coupled = {part: name(recipes[0], "AdamW") for part, recipes in ABLATIONS.items()}
    held = {part: name(recipes[2], "AdamW") for part, recipes in ABLATIONS.items()}
    return Section(
        "", "Fine-tuning on SST-2 with AdamW, equal epochs", "%",
        rows=tuple(Row(recipe.name, metric(name(recipe, "AdamW"), "accuracy")) for recipe in METHODS["AdamW"]),
        claims=(
            *(
                Claim(f"{part} fast: slow lr / k better than coupled", gain(held[part], coupled[part], "accuracy"))
                for part in ABLATIONS
            ),
            *(_no_worse(f"{part} fast, slow lr / k", held[part], name(FULL, "AdamW")) for part in ABLATIONS),
        ),
        plots=(Bars("dev accuracy [%]"),), note=NOTE, facts=_fastest,
    )  # fmt: skip


def _fastest(record: Record) -> list[str]:
    """Return the speed of each recipe over that of full fine-tuning with AdamW."""
    full = name(FULL, "AdamW")
    ratios = {recipe.name: faster(name(recipe, "AdamW"), full)(record) for recipe in METHODS["AdamW"][1:]}
    said = [f"{label} {stats.summarize(values).median:.2f}" for label, values in ratios.items() if values]
    return [f"Speed over full fine-tuning, median: {'; '.join(said)}."] if said else []
