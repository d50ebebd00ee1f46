"""The command line of the benchmarks: `python -m benchmarks NAME [--preset smoke|cpu|gpu|paper]`."""

import math
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.core import records
from benchmarks.core import runner as harness
from benchmarks.core.errors import Interrupted, UserError
from benchmarks.core.registry import REGISTERED
from benchmarks.report.paper import ITEMS

RESULTS = Path(__file__).parent / "results"
SMOKE = Path("runs")
REPORT = Path(__file__).parent.parent / "site" / "report"  # beside the pages of the site
README = Path(__file__).parent.parent / "README.md"
DOCS = README.parent / "docs"

Preset = Annotated[str, typer.Option(help="Which configuration: smoke, cpu, gpu or paper.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with real data; default MRREG_DATA, else a download.")]
Device = Annotated[str, typer.Option(help="Where to compute, as torch spells it: cpu, cuda, cuda:1.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="How many seeds, if not as many as the preset has.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder of the record; default benchmarks/results, for smoke runs/.", file_okay=False),
]

app = typer.Typer(
    help="Reproduce the paper's experiments; every run is kept in a JSON record and a report shows them all.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_() -> None:
    """Name every benchmark and its presets."""
    for name, entry in REGISTERED.items():
        try:
            presets = ", ".join(entry.load().presets)
        except UserError as error:
            presets = str(error)
        print(f"{name:16} {entry.summary} [{presets}]")


@app.command("all")
def all_(
    preset: Annotated[Literal["smoke", "cpu", "gpu", "paper"], typer.Option(help="Which configurations.")] = "cpu",
    budget: Annotated[float, typer.Option(min=0, help="Seconds after which no run is begun.")] = math.inf,
    device: Device = "cpu",
    data_dir: DataDir = None,
    seeds: Seeds = None,
    out: Out = None,
) -> None:
    """Run every benchmark, the most important first; failures are reported at the end."""
    failures, until = [], time.monotonic() + budget
    for name, entry in REGISTERED.items():
        try:
            benchmark = entry.load()
            if preset in benchmark.presets:
                where = out or folder(preset)
                harness.run(benchmark, preset, where, seeds=seeds, device=device, data_dir=data_dir, until=until)
            else:
                print(f"{name}: has no preset {preset}, left out")
        except Exception as error:
            if not isinstance(error, UserError):
                traceback.print_exc()
            failures.append(f"FAILED {name}: {type(error).__name__}: {error}")
    for failure in failures:
        print(failure, file=sys.stderr)
    raise typer.Exit(1 if failures else 0)


@app.command("report")
def report_(
    records_in: Annotated[Path, typer.Option("--records", help="Folder of the records.", file_okay=False)] = RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of report.html and numbers.csv.", file_okay=False)] = REPORT,
    docs: Annotated[
        Path | None,
        typer.Option(
            help="Folder of results.md and results.svg; default docs, with --out that folder.", file_okay=False
        ),
    ] = None,
    readme: Annotated[
        bool, typer.Option("--readme", help="Also put comparisons into README.md and docs/when-it-helps.md.")
    ] = False,
) -> None:
    """Show all records: one section for each table and figure of the paper, its numbers beside ours."""
    from benchmarks.report import pages as report

    found = records.load_all(records_in)
    if not found:
        raise UserError(f"{records_in}: there is no record in this folder. Run a benchmark: python -m benchmarks list")
    shown, shows = report.sources(found)
    chapters = report.chapters(shown, ITEMS)
    title = "Multirate training of neural networks: what it gains, what it costs, and the paper's numbers beside ours"
    intro = f"Made from {len(shown)} records by python -m benchmarks report."
    docs = docs or (DOCS if out == REPORT else out)
    pages = report.write(title, intro, shown, shows, chapters, out)
    for path in (*pages, *report.write_docs(shown, shows, chapters, docs)):
        print(path)
    if readme:
        for page, table in ((README, report.excerpt(shows)), (DOCS / "when-it-helps.md", report.thin(shows))):
            report.fill(page, table)
            print(page)


@app.command("demo")
def demo_(
    out: Annotated[Path, typer.Option(help="Folder of the report.", file_okay=False)] = Path("demo-report"),
    preset: Annotated[str, typer.Option(help="demo, or smoke for seconds.")] = "demo",
) -> None:
    """Thin training, fine-tuning and time scales on data that ship with scikit-learn; at most five minutes."""
    from benchmarks.experiments import demo

    demo.run(out, preset)


def folder(preset: str) -> Path:
    """Return the folder of records unless told otherwise."""
    return SMOKE if preset == "smoke" else RESULTS


def _command(name: str) -> Callable[..., None]:
    def command(
        preset: Preset = "cpu",
        device: Device = "cpu",
        data_dir: DataDir = None,
        seeds: Seeds = None,
        out: Out = None,
    ) -> None:
        benchmark = REGISTERED[name].load()
        outcome = harness.run(benchmark, preset, out or folder(preset), seeds=seeds, device=device, data_dir=data_dir)
        print(f"{name} {preset}: trained on {benchmark.data_of(benchmark.config(preset))}")
        print(f"{name} {preset}: {outcome.finished} of {outcome.total} runs are in {outcome.path}")

    return command


speed = typer.Typer(no_args_is_help=True)
app.add_typer(speed, name="speed", help="Seconds: python -m benchmarks speed NAME")
for each, entry in REGISTERED.items():
    group, _, own = each.rpartition(" ")
    (speed if group else app).command(own, help=entry.summary)(_command(each))


def main() -> None:
    """Run the command line; what the caller can put right is one line, not a traceback."""
    try:
        app(prog_name="python -m benchmarks")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        sys.exit(130)  # as a shell reports a program that Ctrl-C has ended


if __name__ == "__main__":
    main()
