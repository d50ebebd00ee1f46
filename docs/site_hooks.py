"""Hooks of the site: the README as its first page, formulas without scripts, doctests shown as code."""

import html
import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the page `index.md`; MkDocs calls this. Its links begin in docs/, not above it."""
    readme = Path(config.config_file_path).with_name("README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=readme.replace("](docs/", "](")))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Show formulas as MathML, which browsers render by themselves; MkDocs calls this."""
    formula = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
    displays = {"span": "inline", "div": "block"}
    return formula.sub(lambda found: convert(html.unescape(found[2]), display=displays[found[1]]), content)


class Examples(griffe.Extension):
    """Read `Example:` as the section of doctests that griffe knows as `Examples:`; mkdocstrings calls this."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section in one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
