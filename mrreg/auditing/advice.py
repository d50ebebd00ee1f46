"""Tables of an audit, and the advice that follows from its numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

from mrreg.errors import quoted

SMALL_GAIN = 1.1  # speed-up at k = 5 below which there is hardly anything to gain
LARGE_SHARE = 0.5  # share of the slow part's FLOPs in the fast part's backward from which the fast part lies early

ALWAYS = (
    'With AdamW use slow_lr="per_gradient": its update has size lr whatever the gradient is.',
    "With SGD the coupled lr (the default) must be below about 1/k of the largest lr that is stable for the slow part.",
    "Freezing the slow part costs less still: compare with it at equal seconds (docs/when-it-helps.md says where the "
    "one or the other was ahead).",
)


def advice(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield advice from the numbers of one audit."""
    if report["reached_share"] >= LARGE_SHARE and report["forced_by"]:
        name, *tied = report["forced_by"]
        also = f" (tied to {quoted(tied)})" if tied else ""
        yield (
            f"{name!r}{also} is fast but lies early: its backward goes through {len(report['reached'])} modules that "
            f"are not fast, {report['reached_share']:.0%} of their FLOPs. Make it slow."
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
        count = len(report["batch_norm"])
        yield f"{count} BatchNorm layers are slow, but their statistics move at every forward: see mrreg.batch_norm."
    yield from ALWAYS


def render(report: Mapping[str, Any]) -> str:
    """Return the report for a terminal."""
    parts, periods, sizes, seconds = (report[key] for key in ("parts", "periods", "bytes", "seconds"))
    through = f"{len(report['reached'])} modules that are not fast ({report['reached_share']:.0%} of their FLOPs)"
    lines = [
        f"{report['model']} on {report['device']} ({report['threads']} CPU threads)",
        *_table(
            ("part", "tensors", "parameters"),
            *((name, each["tensors"], each["parameters"]) for name, each in parts.items()),
        ),
        *_table(
            ("step", "forward (ms)", "backward (ms)", "memory (MiB)"),
            *((name, *(1e3 * x for x in each.values()), sizes[name] / 2**20) for name, each in seconds.items()),
        ),
        "Times faster with a slow gradient at every k-th step:",
        *_table(
            ("", *(f"k = {each['k']}" for each in periods)),
            ("times faster", *(each["speedup"] for each in periods)),
            ("mean memory (MiB)", *(each["mean_bytes"] / 2**20 for each in periods)),
        ),
        f"The fast part's backward goes through {through}: {quoted(report['reached'])}.",
        *(f"- {each}" for each in report["advice"]),
    ]
    return "\n".join(lines)


def _table(*rows: tuple[Any, ...]) -> list[str]:
    cells = [
        [f"{x:.2f}" if isinstance(x, float) else f"{x:,}" if isinstance(x, int) else x for x in row] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
