"""Tables of an audit, and the advice that follows from its numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

from mrreg.errors import quoted

SMALL_GAIN = 1.1  # speed-up at k = 5 below which there is hardly anything to gain
LARGE_SHARE = 0.5  # share of the slow part's FLOPs in the fast part's backward from which the fast part lies early

ALWAYS = (
    'With AdamW use slow_lr="per_gradient": its update has size lr whatever the gradient is.',
    "With SGD the coupled lr (the default) must be below about 1/k of the largest lr that is stable for the slow part.",
)
FREEZING = "Freezing the slow part costs less still: compare with it at equal seconds."
BY_KIND = {  # findings of the benchmarks of this library
    "text": (
        "Fine-tuning a text encoder with AdamW for a short time, half of the layers fast and the embeddings frozen "
        "beat full fine-tuning at equal seconds; the classifier alone fast lost to it (benchmark text-seconds).",
        "In longer runs freezing the lower half did at least as well and costs less: compare at equal seconds.",
    ),
    "images": (
        "Fine-tuning a convolutional network, each method with its own best lr, a fast head was level with full "
        "fine-tuning at equal seconds and behind it at equal epochs (benchmark transfer). Begin with half of its lr.",
        FREEZING,
    ),
    "": (FREEZING,),
}


def advice(report: Mapping[str, Any]) -> list[str]:
    """Return advice, from the numbers of one audit and the findings of the benchmarks for such models."""
    return [*_findings(report), *ALWAYS, *BY_KIND[report["kind"]]]


def is_advised_against(candidate: Mapping[str, Any], kind: str) -> bool:
    """Return True if the advice would warn of a fast part: it lies early, saves nothing or is a classifier alone."""
    alone = kind == "text" and not candidate["holds_attention"]
    return bool(candidate["reached_share"] >= LARGE_SHARE or candidate["speedup"]["5"] < SMALL_GAIN or alone)


def _findings(report: Mapping[str, Any]) -> Iterable[str]:
    """Yield the findings in this model's numbers."""
    for each in report["forced_by"][:3] if report["reached_share"] >= LARGE_SHARE else ():
        name, *tied = each["names"]
        also = f" (tied to {quoted(tied)})" if tied else ""
        yield (
            f"{name!r}{also} is fast but lies early: its backward goes through {each['modules']} modules that are not "
            f"fast, {report['reached_share']:.0%} of their FLOPs. Make it slow."
        )
    if report["inputs_need_gradient"]:
        yield "An input has requires_grad=True, so that every backward goes through the whole model."
    gain = next(each["speedup"] for each in report["periods"] if each["k"] == 5)
    if gain < SMALL_GAIN:
        yield f"At k = 5 a step is only {gain:.2f} times faster: this fast part hardly saves time."
    lacking = [name for part in ("fast", "slow") for name in report["parts"][part]["without_gradient"]]
    if lacking:
        yield f"No gradient reaches {quoted(lacking)}: the loss does not depend on them."
    if report["batch_norm"]:
        yield (
            f"The slow part has {len(report['batch_norm'])} BatchNorm layers: their running statistics move at every "
            'forward; mrreg.batch_norm(optimizer, model, statistics="sync") moves them with their part.'
        )
    if report["dropout"]:
        yield (
            f"The slow part has {len(report['dropout'])} Dropout layers: a gradient taken with one draw is used for k "
            "steps."
        )


def render(report: Mapping[str, Any]) -> str:
    """Return the report for a terminal."""
    parts, seconds = report["parts"], report["seconds"]
    lines = [f"{report['model']} on {report['device']} ({report['threads']} CPU threads)"]
    lines += _table(
        ("part", "tensors", "parameters", "forward FLOPs"),
        [
            (name, f"{each['tensors']:,}", f"{each['parameters']:,}", f"{each['flops']:,}")
            for name, each in parts.items()
        ],
    )
    lines += _table(
        ("step", "forward", "backward", "update (SGD)", "memory"),
        [
            (name, *(f"{1e3 * value:.2f} ms" for value in each.values()), f"{report['bytes'][name] / 2**20:,.1f} MiB")
            for name, each in seconds.items()
        ],
    )
    lines += _table(
        ("k", "times faster", "mean memory", "largest fast part at a similar speed"),
        [
            (
                str(each["k"]),
                f"{each['speedup']:.2f}",
                f"{each['mean_bytes'] / 2**20:,.1f} MiB",
                _suggested(report["suggestions"], each["k"]),
            )
            for each in report["periods"]
        ],
    )
    through = f"{len(report['reached'])} modules that are not fast ({report['reached_share']:.0%} of their FLOPs)"
    named = f": {quoted(report['reached'])}." if report["reached"] else "."
    lines.append(f"The fast part's backward goes through {through}{named}")
    return "\n".join(lines + [f"- {each}" for each in report["advice"]])


def _suggested(suggestions: Iterable[Mapping[str, Any]], k: int) -> str:
    found = (f"{' '.join(each['fast'])} ({each['speedup']:.2f})" for each in suggestions if each["k"] == k)
    return next(found, "none to advise")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table, its columns aligned to the left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
