"""Build the site of the documentation (`make site`) from the Markdown of the repository, whose root is its source."""

import inspect
import os
import re
from importlib.metadata import version as installed_version
from typing import Any

import django
from django.conf import settings
from docutils import nodes
from pygments.lexers.configs import IniLexer

import django_delayq

settings.configure(INSTALLED_APPS=["django_delayq"])
django.setup()  # what is about schedules needs the models

project = "django-delayq"
author = copyright = "the authors of django-delayq"
release = version = installed_version("django-delayq")

extensions = ["myst_parser", "sphinx_copybutton", "sphinx_llms_txt"]
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "docs/**.md"]
myst_heading_anchors = 4  # links to headings, as they work where the repository is read
copybutton_exclude = ".linenos, .gp"

html_theme = "furo"
html_title = f"django-delayq {release}"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")  # search engines take the default version of a page
templates_path = ["templates"]
html_additional_pages = {"index": "index.html"}  # leads to the README, which is the front page

SECTIONS = {
    "Begin": ["docs/tutorial"],
    "How to": ["docs/how-to/*"],
    "Reference": ["docs/reference/*"],
    "Inside": ["docs/internals/*"],
    "Contribute": [
        "CONTRIBUTING",
        "docs/contributing/*",
        "docs/contributing/decisions/*",
        "CODE_OF_CONDUCT",
        "SECURITY",
        "CHANGELOG",
    ],
}
"""The sections of the navigation, and the pages of each."""


def _add_navigation(app: Any, docname: str, source: list[str]) -> None:
    """Add the tables of contents to the README, which does without them where the repository is read."""
    if docname == root_doc:
        for section, pages in SECTIONS.items():
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:caption: {section}\n:hidden:\n:glob:\n\n{listed}\n```\n"


def _add_names(app: Any, doctree: nodes.document) -> None:
    """Add the public names to the inventory for intersphinx, each with its section of the API page."""
    if app.env.docname != "docs/reference/api":
        return
    sections = list(doctree.findall(nodes.section))
    for name in django_delayq.__all__:
        titled = [each for each in sections if each[0].astext() == name]
        place = (titled or [each for each in sections if re.search(rf"\b{name}\b", each.astext())])[-1]
        value = getattr(django_delayq, name)
        kind = "class" if isinstance(value, type) else "function" if inspect.isroutine(value) else "data"
        app.env.get_domain("py").note_object(f"django_delayq.{name}", kind, place["ids"][0])


def setup(app: Any) -> None:
    """Connect what is above to Sphinx, and have blocks of redis.conf coloured like other settings."""
    app.add_lexer("conf", IniLexer)
    app.connect("source-read", _add_navigation)
    app.connect("doctree-read", _add_names)
