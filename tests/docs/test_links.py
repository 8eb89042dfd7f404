"""No link of the documentation leads nowhere."""

import re
from pathlib import Path

import pytest

from tests.docs.site import ROOT
from tests.docs.tables import prose

TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_page_and_its_heading_leads_there(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not _leads_somewhere(page, link)] == []


def test_every_page_is_linked_from_the_readme_or_for_contributors_from_contributing() -> None:
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    for_contributors = {page for page in pages if page.startswith("docs/contributing/")}
    assert _not_linked("README.md", pages - for_contributors | {"CONTRIBUTING.md"}) == []
    assert _not_linked("CONTRIBUTING.md", for_contributors) == []


def _not_linked(page: str, pages: set[str]) -> list[str]:
    text = (ROOT / page).read_text()
    return [each for each in sorted(pages) if f"({each})" not in text]


def _leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
