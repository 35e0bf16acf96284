"""Sphinx reads the Markdown of this folder and the docstrings of the package. Nothing is fetched from anywhere.

The pages on commands and on rooms are made from the code when a build begins (``generate.py``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import quietsum

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "quietsum"
author = "the quietsum authors"
project_copyright = author
version = release = quietsum.__version__

exclude_patterns = ["decisions/template.md"]  # to be copied, not to be read
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
highlight_language = "none"  # what a terminal prints is no Python; code says what it is

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}

html_theme = "furo"
html_title = f"quietsum {release}"
html_show_sphinx = False


def setup(app: Any) -> None:
    import generate

    app.connect("builder-inited", lambda _: generate.write(HERE / "reference"))
