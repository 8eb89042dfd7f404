"""Debian's Chromium on a live server, with a store on SQLite and a real Redis."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.test import Client
from django.test.testcases import LiveServerThread
from playwright.sync_api import ConsoleMessage, Page, sync_playwright
from pytest_django import Settings

from tests import servers
from tests.databases import SiteTables
from tests.servers import Server
from tests.store.support import site_on
from tests.worker.processes import Site

PATIENCE_MS = 30_000


@pytest.fixture
def redis_binary() -> str:
    """One redis-server: what is tested here does not depend on its version."""
    return next(iter(servers.redis_binaries()), "") or servers.missing("redis-server")


@pytest.fixture
def database(sqlite_database: str) -> str:
    """The alias of the database of the site and its store."""
    return sqlite_database


@pytest.fixture
def stored_delayq(settings: Settings, redis_url: str, database: str) -> dict[str, Any]:
    """DELAYQ["default"] with a store, and a site around it."""
    alias = {
        "BROKER": "django_delayq.brokers.redis.RedisBroker",
        "LOCATION": redis_url,
        "DATABASE": database,
        "STORE": {},
        "OPTIONS": {"unknown_keys": "allow"},
    }
    settings.DELAYQ = {"default": alias}
    settings.DATABASE_ROUTERS = [SiteTables(database)]
    settings.MIDDLEWARE = ["tests.browser.csp.strict_policy", *settings.MIDDLEWARE]
    return alias


@pytest.fixture
def site(stored_delayq: dict[str, Any], database_env: dict[str, str], redis_server: Server) -> Iterator[Site]:
    """The same site, on which workers run."""
    with site_on(stored_delayq, database_env, redis_server) as site:
        yield site


@pytest.fixture
def live_url(stored_delayq: dict[str, Any]) -> Iterator[str]:
    """Yield where the site is served, with its static files."""
    thread = LiveServerThread("127.0.0.1", StaticFilesHandler)
    thread.daemon = True
    thread.start()
    thread.is_ready.wait()
    if thread.error:
        raise thread.error
    yield f"http://127.0.0.1:{thread.port}"
    thread.terminate()


@pytest.fixture
def chromium() -> str:
    """The distribution's Chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or servers.missing("chromium")


@pytest.fixture
def faults() -> list[str]:
    """Return what the browser complained of: what the policy forbids, and what scripts raise."""
    return []


@pytest.fixture
def page(
    chromium: str, site: Site, live_url: str, faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Page]:
    """A page of somebody who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    session = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_url}
    # Playwright's sync calls run an event loop in this thread, in which Django would refuse every query of the test.
    # It ends with the test, so that other tests find none.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        context = browser.new_context(base_url=live_url)
        context.add_cookies([session])  # type: ignore[list-item]  # a TypedDict, told by its keys
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: faults.extend(_fault_of(message)))
        page.on("pageerror", lambda error: faults.append(str(error)))
        yield page
        browser.close()


def _fault_of(message: ConsoleMessage) -> list[str]:
    """Return what the browser complains of, but for the icon that no site of the tests has."""
    is_fault = message.type == "error" and not message.location["url"].endswith("/favicon.ico")
    return [message.text] if is_fault else []
