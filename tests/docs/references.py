"""What a page says is in the repository: `path`, and `path::name` for something that the file defines."""

import re
from pathlib import Path

from tests.docs.site import ROOT

_TOP = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.is_dir())
_PATH = re.compile(rf"`((?:{_TOP})/[^`\s]*|\w+\.(?:toml|md)(?:::[\w.-]+)?|\w+\.(?:py|lua)|Makefile)`")
_TO_MAKE = "NAME"
"""Stands in the path of a file that the reader is to make."""


def references(page: Path) -> list[str]:
    """Return every path that a page names in code, outside of its blocks and links."""
    return [found for found in _PATH.findall(page.read_text()) if _TO_MAKE not in found]


def missing(reference: str) -> str | None:
    """Return what is wrong with a reference; None if it leads somewhere."""
    path, _, name = reference.partition("::")
    if path.endswith((".py", ".lua")) and "/" not in path:  # told more fully before it
        return None if any((ROOT / "django_delayq").rglob(path)) else f"there is no {path}"
    if not any(ROOT.glob(path.rstrip("/"))):
        return f"there is no {path}"
    if not name:
        return None
    text = (ROOT / path).read_text()
    if path.endswith(".toml"):
        return None if f"[{name}]" in text else f"{path} has no table {name}"
    undefined = [part for part in name.split(".") if not _defines(text, part)]
    return f"{path} defines no {undefined[0]}" if undefined else None


def _defines(text: str, name: str) -> bool:
    return re.search(rf"^\s*(?:(?:async )?def|class) {name}\b|^\s*{name}\b[^=\n(]* = ", text, re.MULTILINE) is not None
