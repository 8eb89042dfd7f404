"""Every code block of the README, of CONTRIBUTING and of docs/ does what its page says."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.docs.blocks import run_page
from tests.docs.site import ROOT, Site
from tests.servers import Servers

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FROM_ZERO = {"tutorial.md"}
WITHOUT_DELAYQ = {"README.md"}


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop's site, to be copied."""
    site = Site(tmp_path_factory.mktemp("shop"), "")
    site.make_shop()
    return site.directory


@pytest.fixture(scope="session")
def shop_with_delayq(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with what the README adds."""
    site = Site(tmp_path_factory.mktemp("shop") / "with_delayq", "")
    shutil.copytree(shop, site.directory)
    site.add_delayq()
    return site.directory


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, session_servers: Servers) -> Iterator[Site]:
    """The site that a page begins with."""
    binaries = servers.redis_binaries() or servers.missing("redis-server")
    site = Site(tmp_path / "site", session_servers.shared(binaries[0]).url)
    page: Path = request.getfixturevalue("page")
    if page.name in FROM_ZERO:
        site.directory.mkdir()
    else:
        begun = request.getfixturevalue("shop" if page.name in WITHOUT_DELAYQ else "shop_with_delayq")
        shutil.copytree(begun, site.directory)
    yield site
    site.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_does_what_the_page_says(page: Path, site: Site) -> None:
    run_page(page, site)
