"""Builds the site: ``make docs``. Pictures and tables are made from the package and from ``benchmarks/results``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]  # for `benchmarks` and `pictures`, which are not installed

import rlinit  # noqa: E402

project, author = "rlinit", "the rlinit authors"
version = release = rlinit.__version__
project_copyright = "Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_generated/benchmarks/summary.md"]
default_role = "py:obj"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"rlinit {release}"
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}


def make_what_pages_show(_app: Sphinx) -> None:
    """Write pictures and tables to ``docs/_generated``, which git ignores."""
    import pictures

    from benchmarks.pages import write_pages

    made = DOCS / "_generated"
    pictures.write_pictures(made)
    write_pages(made / "benchmarks")


def setup(app: Sphinx) -> None:
    """Have the pictures and tables made before pages are read."""
    app.connect("builder-inited", make_what_pages_show)
