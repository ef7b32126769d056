"""How README and docs/ become a site: `make site`, or `sphinx-build -W -c docs . site`.

The source is the whole repository, so that a link between two files is the same link on the site; README.md is the
first page. The notebook is executed by every build, and a cell that fails fails the build.
"""

from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

project = "Mnemoscope"
author = "the Mnemoscope developers"
release = version = installed_version("mnemoscope")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/log/*.md",
    "docs/*.ipynb",
    "src/mnemoscope/atlas/FORMAT.md",
    "src/mnemoscope/models/pydocs/MODEL_CARD.md",
]

html_theme = "furo"
html_title = "Mnemoscope"
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["llms.txt"]

myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True

default_role = "code"  # docstrings mark code with single backticks

autodoc_member_order = "bysource"

CONTENTS = {
    "First steps": [
        "docs/README",
        "docs/notebook",
        "docs/tour",
        "docs/recipes",
        "docs/serve",
        "docs/models",
        "docs/scale",
    ],
    "What is measured": [
        "docs/paper",
        "docs/real-models",
        "docs/questions",
        "docs/definitions",
        "docs/patterns",
        "docs/beyond",
        "docs/neural-memory",
    ],
    "Working with an atlas": [
        "docs/search",
        "docs/tracing",
        "docs/cause",
        "docs/annotating",
        "docs/judgements",
        "docs/compare",
        "docs/sharing",
        "docs/export",
        "docs/training",
        "docs/agents",
        "AGENTS",
        "docs/bridges",
    ],
    "Reference": [
        "docs/api",
        "docs/cli",
        "docs/format",
        "src/mnemoscope/atlas/FORMAT",
        "docs/terminology",
        "docs/errors",
    ],
    "The project": [
        "docs/decisions",
        "docs/speed",
        "docs/log/*",
        "CHANGELOG",
        "CONTRIBUTING",
        "src/mnemoscope/models/pydocs/MODEL_CARD",
    ],
}
"""Every page beside README, by the heading of the side bar that it stands under."""


def setup(app: Sphinx) -> None:
    """Gives README its table of contents, which the file itself has no use for, and the site a first page."""

    def add_first_page(_: Sphinx, error: Exception | None) -> None:
        if error is None:
            to = '<!doctype html><title>Mnemoscope</title><meta http-equiv="refresh" content="0; url=README.html">\n'
            (Path(app.outdir) / "index.html").write_text(to, encoding="utf-8")

    app.connect("build-finished", add_first_page)

    def add_contents(_: Sphinx, page: str, source: list[str]) -> None:
        if page == root_doc:
            for caption, pages in CONTENTS.items():
                options = f":hidden:\n:glob:\n:caption: {caption}"
                source[0] += f"\n```{{toctree}}\n{options}\n" + "\n".join(pages) + "\n```\n"

    app.connect("source-read", add_contents)
