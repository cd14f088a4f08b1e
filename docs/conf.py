"""Configuration of the documentation site. `make docs` builds it from the repository's root; warnings are errors."""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import itl  # noqa: E402

project = "itl"
author = "the itl authors"
copyright = "the itl authors, MIT license"
release = version = itl.__version__

# The source folder is the repository's root, so that links to CONTRIBUTING.md, results/README.md or a source file work
# on the site as they do in the repository.
root_doc = "docs/index"
EVIDENCE = ["benchmarks/results/README.md", "benchmarks/results/**/README.md"]
include_patterns = ["*.md", "docs/**.md", "results/README.md", "results/**/README.md", *EVIDENCE]
exclude_patterns = ["build", "docs/README.md", ".venv*"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
]
myst_heading_anchors = 4  # links such as page.md#heading, checked at build time
highlight_language = "none"  # blocks without a language are output
smartquotes_action = "qe"  # no dashes: options such as --out in the help texts stay as they are
suppress_warnings = ["myst.header"]  # generated tables begin at the third level

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
default_role = "code"  # docstrings write names in single backticks
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"itl {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["_static"]  # index.html of the site, which leads to docs/index.html


def prepare_source(app: Any, docname: str, source: list[str]) -> None:
    """Adapt a page to the site: links to folders lead to a README or become text, numbers in tables do not break.

    READMEs of experiments need no menu entry.
    """
    folder = (ROOT / docname).parent

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or not (folder / target).is_dir():
            return match[0]
        return f"[{text}]({target.rstrip('/')}/README.md)" if (folder / target / "README.md").exists() else text

    source[0] = re.sub(r"\[([^\]]*)\]\(([^)#\s]+)\)", link, source[0])
    source[0] = re.sub(r"^\|.*\|$", lambda row: row[0].replace(" ± ", "\u00a0±\u00a0"), source[0], flags=re.MULTILINE)
    if docname.endswith("/README") and docname not in ("results/README", "benchmarks/results/README"):
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def setup(app: Any) -> None:
    """Register the handler."""
    app.connect("source-read", prepare_source)
