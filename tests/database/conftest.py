"""Sites that have no server but their database."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.database import DatabaseBroker
from django_delayq.conf import Alias, Store
from django_delayq.store import DatabaseBackend
from tests.worker.processes import Site, site_with

ALONE = "django_delayq.brokers.database.DatabaseBroker"


@pytest.fixture
def site(settings: Settings, database: str, database_env: dict[str, str], tmp_path: Path) -> Iterator[Site]:
    """A site with leases of two seconds, on each database."""
    alias: dict[str, Any] = {"BROKER": ALONE, "STORE": {}, "OPTIONS": {"unknown_keys": "allow", "lease": "2s"}}
    settings.DELAYQ = {"default": alias | {"DATABASE": database}}
    with site_with(alias, get_backend(), database_env, Path("/tmp")) as site:
        yield site


@pytest.fixture
def new_backend() -> Iterator[Callable[[str], DatabaseBackend]]:
    """Backends as processes of their own have them."""
    with ExitStack() as opened:

        def make(database: str) -> DatabaseBackend:
            alias = Alias("default", broker=ALONE, database=database, store=Store())
            backend = DatabaseBackend(alias, Store(), DatabaseBroker(alias))
            opened.enter_context(closing(backend))
            return backend

        yield make
