"""The command line: `python -m mrreg audit torchvision.models:resnet18 --shape 2,3,64,64`."""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import nn

import mrreg
from mrreg.errors import invalid_argument, unknown_name

try:
    import typer
except ImportError:
    sys.exit("python -m mrreg needs typer: pip install 'mrreg[cli]'")

Model = Annotated[str, typer.Argument(help="What makes the model, as module:factory, called without arguments.")]
Shape = Annotated[list[str] | None, typer.Option(help="Shape of an input of random numbers; once for each argument.")]
Inputs = Annotated[str | None, typer.Option(help="What makes the example inputs instead, as module:factory.")]
Fast = Annotated[list[str] | None, typer.Option(help="What trains at every step: names or patterns; else the end.")]
P = Annotated[float, typer.Option("--p", help="Share of the units that are absent on masked steps.")]
K = Annotated[int, typer.Option("--k", help="Steps per cycle.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Ask before training what multirate training would do for a model."""


@app.command()
def audit(model: Model, shape: Shape = None, inputs: Inputs = None, fast: Fast = None, as_json: AsJson = False) -> None:
    """Measure what a fast part would save, and say what stands in the way."""
    with _one_line_errors():
        made, example_inputs = _model(model), _example_inputs(shape or [], inputs)
        report = mrreg.audit(made, fast or _last_module(made), example_inputs)
    typer.echo(json.dumps(report, indent=2) if as_json else str(report))


@app.command()
def thin(
    model: Model, shape: Shape = None, inputs: Inputs = None, p: P = 0.5, k: K = 5, as_json: AsJson = False
) -> None:
    """List the groups of units that thin training drops, what a masked step computes, and what is refused and why."""
    with _one_line_errors():
        _, report = mrreg.thin(_model(model), p, k, _example_inputs(shape or [], inputs))
    groups = {name: vars(entry) | {"slots": [slot.name for slot in entry.slots]} for name, entry in report.items()}
    plain = {"groups": groups, "k": k, "masked_share": report.masked_share, "cycle_share": report.cycle_share}
    typer.echo(json.dumps(plain, indent=2) if as_json else str(report))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Report an error in the arguments in one line, and exit."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        typer.echo(f"Error: {error} {notes}".rstrip(), err=True)
        raise typer.Exit(2) from error


def _load(argument: str, path: str) -> Any:
    """Import the object that `module:name` names."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise invalid_argument(ValueError, "mrreg", argument, "module:factory", path)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        rule = "module:factory with a module that can be imported"
        raise invalid_argument(ValueError, "mrreg", argument, rule, path, f"{error}.") from error
    if not hasattr(found, name):
        names = [each for each in vars(found) if not each.startswith("_")]
        raise unknown_name("mrreg", argument, f"something in {module}", name, names)
    return getattr(found, name)


def _model(path: str) -> nn.Module:
    """Return the model that a factory makes, or the model that stands there."""
    found = _load("model", path)
    model = found if isinstance(found, nn.Module) else found()
    if not isinstance(model, nn.Module):
        raise invalid_argument(TypeError, "mrreg", "model", "a factory of an nn.Module", type(model).__name__)
    return model


def _example_inputs(shapes: list[str], path: str | None) -> Any:
    """Return random numbers of the given shapes, or what a factory makes."""
    if bool(shapes) == bool(path):
        rule = "given by --shape or by --inputs"
        raise invalid_argument(ValueError, "mrreg", "inputs", rule, "both" if path else "neither")
    if path:
        found = _load("inputs", path)
        return found() if callable(found) else found
    return tuple(torch.randn(_sizes(shape)) for shape in shapes)


def _sizes(shape: str) -> list[int]:
    if not all(size.strip().isdecimal() for size in shape.split(",")):
        raise invalid_argument(ValueError, "mrreg", "shape", "whole numbers with commas, such as 2,3,64,64", shape)
    return list(map(int, shape.split(",")))


def _last_module(model: nn.Module) -> str:
    """Return the name of the module whose parameters come last: by custom the head."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    if not names:
        raise invalid_argument(ValueError, "mrreg", "model", "a model with parameters that train", "none")
    return names[-1].rpartition(".")[0] or names[-1]


if __name__ == "__main__":
    app(prog_name="python -m mrreg")
