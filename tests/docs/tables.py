"""The tables of a page, for comparing them with the code."""

import re
from pathlib import Path

from tests.docs.site import ROOT

_CODE = re.compile(r"`([^`]+)`")
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its code blocks, whose comments look like headings."""
    return _BLOCK.sub("", page.read_text())


def tables(page: str, under: str = "") -> list[list[list[str]]]:
    """The tables of docs/`page`, cell by cell without their heads; only those of the section `under` a heading."""
    text = prose(Path(ROOT, "docs", page))
    if under:
        level = re.search(rf"^(#+) {re.escape(under)}$", text, re.MULTILINE)
        assert level, f"{page} has no heading {under!r}"
        text = re.split(rf"^#{{1,{len(level[1])}}} ", text[level.end() :], flags=re.MULTILINE)[0]
    found = re.findall(r"(?:^\|.*\n)+", text + "\n", re.MULTILINE)
    return [[_cells(line) for line in table.splitlines()[2:]] for table in found]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def rows(page: str, under: str = "") -> dict[str, list[str]]:
    """Every row of those tables by the code in its first cell."""
    found = {}
    for table in tables(page, under):
        for first, *others in table:
            found.update(dict.fromkeys(codes(first), others))
    return found


def codes(cell: str) -> list[str]:
    """Return what a cell has in code."""
    return _CODE.findall(cell)
