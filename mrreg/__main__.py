"""Ask before training what multirate training would do: `audit torchvision.models:resnet18 --shape 2,3,64,64`."""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import nn

import mrreg
from mrreg.errors import check, check_share, check_type, invalid_argument

try:
    import typer
except ImportError:
    sys.exit("python -m mrreg needs typer: pip install 'mrreg[cli]'")

Model = Annotated[str, typer.Argument(help="What makes the model, as module:factory, called without arguments.")]
Shape = Annotated[list[str] | None, typer.Option(help="Shape of an input of random numbers; once for each argument.")]
Inputs = Annotated[str | None, typer.Option(help="What makes the example inputs instead, as module:factory.")]
Fast = Annotated[list[str] | None, typer.Option(help="What trains at every step: names or patterns; else the end.")]
P = Annotated[float | None, typer.Option("--p", help="Share of units absent on masked steps; else the defaults.")]
K = Annotated[int, typer.Option("--k", help="Steps per cycle.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def audit(model: Model, shape: Shape = None, inputs: Inputs = None, fast: Fast = None, as_json: AsJson = False) -> None:
    """Measure what a fast part would save, and say what stands in the way."""
    with _one_line_errors():
        made, example_inputs = _model(model), _example_inputs(shape or [], inputs)
        report = mrreg.audit(made, fast or _last_module(made), example_inputs)
    typer.echo(json.dumps(report, indent=2) if as_json else str(report))


@app.command()
def thin(model: Model, shape: Shape = None, inputs: Inputs = None, p: P = None, k: K = 5) -> None:
    """List the groups of units that thin training drops, what a masked step computes, and what is refused and why."""
    with _one_line_errors():
        p = None if p is None else check_share("thin", "p", p)  # before the search
        typer.echo(str(mrreg.thin(_model(model), p, k, _example_inputs(shape or [], inputs))[1]))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Report an error in the arguments in one line, and exit."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        typer.echo(f"Error: {error} {notes}".rstrip(), err=True)
        raise typer.Exit(2) from error


def _made(argument: str, path: str) -> Any:
    """Return what the factory `module:name` makes, or what stands there."""
    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        rule = "module:factory that can be imported"
        raise invalid_argument(ValueError, "mrreg", argument, rule, path, f"{error}.") from error
    return made() if callable(made) and not isinstance(made, nn.Module) else made


def _model(path: str) -> nn.Module:
    return check_type("mrreg", "model", _made("model", path), nn.Module, "a factory of an nn.Module")


def _example_inputs(shapes: list[str], path: str | None) -> Any:
    """Return random numbers of the given shapes, or what a factory makes."""
    given = "both" if path else "neither"
    check(bool(shapes) != bool(path), "mrreg", "inputs", "given by --shape or by --inputs", given)
    for shape in shapes:
        rule = "whole numbers with commas, such as 2,3,64,64"
        check(all(size.strip().isdecimal() for size in shape.split(",")), "mrreg", "shape", rule, shape)
    sizes = [list(map(int, shape.split(","))) for shape in shapes]
    return _made("inputs", path) if path else tuple(torch.randn(size, device="cpu") for size in sizes)


def _last_module(model: nn.Module) -> str:
    """Return the name of the module whose parameters come last: by custom the head."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    check(names, "mrreg", "model", "a model with parameters that train", "none")
    return names[-1].rpartition(".")[0] or names[-1]


if __name__ == "__main__":
    app(prog_name="python -m mrreg")
