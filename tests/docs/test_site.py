"""The site of the documentation can be built, and others find its names and its pages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

import django_delayq
from tests.docs.site import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it."""
    site = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--quiet",
        "-c",
        "docs",
        "-b",
        "html",
        ".",
        str(site),
    ]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return site


def test_the_inventory_has_each_public_name_with_its_place_on_the_api_page(site: Path) -> None:
    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    places = {
        name: item.uri for kind, items in inventory.items() if kind.startswith("py:") for name, item in items.items()
    }
    assert places.keys() == {f"django_delayq.{name}" for name in django_delayq.__all__}
    assert places["django_delayq.send_delay_message"] == "docs/reference/api.html#send-delay-message"
    assert places["django_delayq.LeaseLost"] == "docs/reference/api.html#errors"
    anchors = set(re.findall(r'id="([^"]+)"', (site / "docs/reference/api.html").read_text()))
    assert {place.partition("#")[2] for place in places.values()} <= anchors


def test_llms_txt_names_every_page(site: Path) -> None:
    named = re.findall(r"_sources/(\S+?)\.txt\)", (site / "llms.txt").read_text())
    assert set(named) == {str(path.relative_to(site / "_sources"))[: -len(".txt")] for path in site.rglob("*.md.txt")}
