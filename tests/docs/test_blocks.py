"""The test of the pages finds what is wrong with a page."""

import configparser
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil.example import SybilFailure

from tests.docs.blocks import run_page
from tests.docs.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, "unix:///nowhere")
    yield site
    site.close()


def run(site: Site, language: str, block: str) -> None:
    page = site.directory / "page.md"
    page.write_text(f"```{language}\n{block}\n```\n")
    run_page(page, site)


@pytest.mark.parametrize(
    ("language", "block"),
    [
        ("console", "$ false"),
        ("console", "$ echo one\ntwo"),
        ("console", "$ echo one\none\n$ false"),
        ("console", "$ pip install django-delayk"),
        ("console", "$ pip install 'django-delayq[warp]'"),
        ("console", "$ make nothing-of-this-name"),
        ("console", "$ python -m benchmarks guess"),
        ("console", "$ .venv/bin/python -m pytest -n 0 tests/test_nothing_of_this_name.py"),
        ("console", "$ .venv/bin/python -m pytest -n 0"),
        ("dockerfile", "FORM python"),
        ("dockerfile", 'CMD ["python", "manage.py", "run_delayq", "--fast"]'),
        ("ini", "[Service]\nExecStart=python manage.py delayq loose"),
        ("ini", "[Service"),
        ("yaml", "containers: [{args: [python, manage.py, run_delayq, --max-memory, much]}]"),
    ],
)
def test_a_wrong_block_fails(site: Site, language: str, block: str) -> None:
    with pytest.raises((SybilFailure, configparser.Error)):
        run(site, language, block)


def test_a_block_of_an_unknown_language_fails(site: Site) -> None:
    with pytest.raises(AssertionError, match="no known language"):
        run(site, "bash", "rm -r .")


def test_a_block_without_a_language_fails(site: Site) -> None:
    with pytest.raises(AssertionError, match="no known language"):
        run(site, "", "x = 1")


def test_output_may_leave_lines_out(site: Site) -> None:
    run(site, "console", "$ printf 'one\\ntwo\\nthree\\n'\none\n...\nthree")


def test_a_named_block_is_saved_and_the_next_adds_to_it(site: Site) -> None:
    run(site, "python", "# shop/delayed.py\nLOCATION = 'redis://127.0.0.1:6379/0'")
    run(site, "python", "# shop/delayed.py: add at the end\nMORE = 1")
    text = (site.directory / "shop/delayed.py").read_text()
    assert "LOCATION = 'unix:///nowhere'" in text
    assert "MORE = 1" in text
