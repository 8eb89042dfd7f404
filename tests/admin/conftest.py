"""A site with the admin and a store, on each database that the store can use."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.store import DatabaseBackend
from tests.admin.support import forget_settings
from tests.admin.tenants import of_own_tenant, send_for_both
from tests.databases import SiteTables


@pytest.fixture(
    params=["sqlite_database", "postgres_database", "mariadb_database"], ids=["sqlite", "postgresql", "mariadb"]
)
def database(request: pytest.FixtureRequest) -> str:
    """The alias of a database that the store can use."""
    alias: str = request.getfixturevalue(request.param)
    return alias


@pytest.fixture
def stored_delayq(settings: Settings, database: str) -> dict[str, Any]:
    """DELAYQ["default"] with a store for this test, and a site around it."""
    alias = {
        "BROKER": "django_delayq.testing.VirtualTimeBroker",
        "DATABASE": database,
        "STORE": {},
        "OPTIONS": {"unknown_keys": "allow"},
    }
    settings.DELAYQ = {"default": alias}
    settings.DATABASE_ROUTERS = [SiteTables(database)]
    return alias


@pytest.fixture
def broker(stored_delayq: dict[str, Any]) -> DatabaseBackend:
    """The broker of that alias."""
    found = get_backend()
    assert isinstance(found, DatabaseBackend)
    return found


@pytest.fixture
def tenants(stored_delayq: dict[str, Any]) -> DatabaseBackend:
    """The broker of that alias, with messages of two tenants (tests/admin/tenants.py) and their hook."""
    stored_delayq["OPTIONS"]["rows_for"] = f"{of_own_tenant.__module__}.{of_own_tenant.__name__}"
    forget_settings()
    found = get_backend()
    assert isinstance(found, DatabaseBackend)
    send_for_both(found)
    return found


@pytest.fixture
def staff(stored_delayq: dict[str, Any]) -> Callable[..., Client]:
    """Logs in a member of staff with these permissions of ours: `staff("view_errormessage", "rescue_message")`."""

    def log_in(*codenames: str) -> Client:
        user = User.objects.create_user(f"staff {User.objects.count()}", is_staff=True)
        permissions = Permission.objects.filter(content_type__app_label="delayq", codename__in=codenames)
        assert {each.codename for each in permissions} == set(codenames)
        user.user_permissions.set(permissions)
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def superuser(stored_delayq: dict[str, Any]) -> Client:
    """A client of somebody who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client
