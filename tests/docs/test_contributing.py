"""The pages for contributors name what there is: files, what they define, and the words of the code."""

import re
from pathlib import Path

import pytest

from tests.docs.references import missing, references
from tests.docs.site import ROOT
from tests.docs.tables import prose

PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/contributing").rglob("*.md"))]
GLOSSARY = ROOT / "docs/contributing/glossary.md"
DECISIONS = sorted((ROOT / "docs/contributing/decisions").glob("*.md"))
PARTS = ["Context", "Decision", "Consequences", "What would change our mind"]


def headings(page: Path, level: int) -> list[str]:
    """Return the headings of a page that have so many marks."""
    return re.findall(rf"^#{{{level}}} (.+)$", prose(page), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_name_on_a_page_exists(page: Path) -> None:
    assert list(filter(None, map(missing, references(page)))) == []


@pytest.mark.parametrize(
    ("reference", "wrong"),
    [
        ("django_delayq/store/claim.py::claim", None),
        ("django_delayq/worker/worker.py::Loop.run", None),
        ("django_delayq/core/transitions.py::FATAL_CRASHES", None),
        ("tests/store/", None),
        ("claim.py", None),
        ("leasing.py", "there is no leasing.py"),
        ("pyproject.toml::tool.importlinter", None),
        ("pyproject.toml::tool.nothing", "pyproject.toml has no table tool.nothing"),
        ("django_delayq/store/leasing.py", "there is no django_delayq/store/leasing.py"),
        ("django_delayq/store/claim.py::lease", "django_delayq/store/claim.py defines no lease"),
        ("django_delayq/worker/worker.py::Loop.walk", "django_delayq/worker/worker.py defines no walk"),
    ],
)
def test_a_reference_that_leads_nowhere_is_found(reference: str, wrong: str | None) -> None:
    assert missing(reference) == wrong


def test_each_word_of_the_glossary_has_one_entry_in_the_order_of_the_alphabet() -> None:
    words = headings(GLOSSARY, 3)
    assert words == sorted(set(words), key=str.casefold)


def test_what_the_glossary_says_the_code_is_called_today_is_in_the_code() -> None:
    sources = [*(ROOT / "django_delayq").rglob("*.py"), *(ROOT / "django_delayq").rglob("*.lua")]
    in_code = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    in_one_line = " ".join(GLOSSARY.read_text().split())
    today = re.findall(r"In the code(?: today)?: ([^.]+(?:\.[^.\s][^.]*)*)\.", in_one_line)
    names = [name for sentence in today for name in re.findall(r"`([^`]+)`", sentence) if "/" not in name]
    assert len(names) > 50
    assert [name for name in names if not set(re.findall(r"\w+", name)) <= in_code] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_all_its_parts(page: Path) -> None:
    assert headings(page, 2) == PARTS
