"""Examples use public names of mrreg only; import-linter sees to the benchmarks."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
PUBLIC = {"mrreg", "mrreg.distributed", "mrreg.theory"}


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a program imports, or imports from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_imports_public_modules(path: Path) -> None:
    modules = {name for name in imported(ast.parse(path.read_text(encoding="utf-8"))) if name.startswith("mrreg")}
    assert modules
    assert modules <= PUBLIC
