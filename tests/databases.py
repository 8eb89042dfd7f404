"""Migrated databases for tests that need real commits, several threads or several processes."""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

TEMPLATE = "delayq_template"
ENDED = "/nowhere/the test has ended"


class DatabaseServer(Protocol):
    """What has databases: a server of tests/servers."""

    @property
    def running(self) -> bool:
        """Return whether it can be asked."""
        ...

    def settings(self, name: str) -> dict[str, Any]:
        """Return what DATABASES says of this database."""
        ...

    def create_database(self, name: str) -> None:
        """A new, empty one."""
        ...

    def copy_database(self, name: str, template: str) -> None:
        """A new one with all that is in `template`, to which nobody may be connected."""
        ...

    def empty_database(self, name: str, tables: Collection[str]) -> None:
        """Delete the rows of these tables. Who was connected is no more."""
        ...

    def drop_database(self, name: str) -> None:
        """Drop it, whoever is connected."""
        ...


_numbers = count(1)
_with_template: WeakSet[DatabaseServer] = WeakSet()
_reused: WeakKeyDictionary[DatabaseServer, str] = WeakKeyDictionary()


class SiteTables:
    """A router: what belongs to the site is in the test's database. Messages are not routed: pages say where."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_read(self, model: type[Any], **hints: Any) -> str | None:
        return None if model._meta.app_label == "delayq" else self.alias

    db_for_write = db_for_read

    def allow_relation(self, *objects: Any, **hints: Any) -> bool:
        return True


@contextmanager
def database_on(server: DatabaseServer) -> Iterator[str]:
    """The alias of a new, migrated database, dropped at the end with all connections to it.

    The first one of a server costs its migrations, the others a copy.
    """
    name = _copy(server)
    try:
        with registered(name, server.settings(name)) as alias:
            yield alias
    finally:
        if server.running:
            server.drop_database(name)


@contextmanager
def reused_database_on(server: DatabaseServer) -> Iterator[str]:
    """The alias of a migrated database without rows, which the next test is given again: a copy costs more.

    For tests that leave the tables as they are.
    """
    if server not in _reused:
        _reused[server] = _copy(server)
    name = _reused[server]
    server.empty_database(name, _tables())
    with registered(f"delayq_{next(_numbers)}", server.settings(name)) as alias:
        yield alias


def _tables() -> list[str]:
    """The tables to which migrations write nothing."""
    models = set(apps.get_models(include_auto_created=True)) - {ContentType, Permission}
    return [model._meta.db_table for model in models]


def _copy(server: DatabaseServer) -> str:
    """The name of a new, migrated database."""
    if server not in _with_template:
        server.create_database(TEMPLATE)
        with registered("delayq_template", server.settings(TEMPLATE)) as alias:
            call_command("migrate", database=alias, run_syncdb=True, interactive=False, verbosity=0)
        _with_template.add(server)
    name = f"delayq_{next(_numbers)}"
    server.copy_database(name, TEMPLATE)
    return name


@contextmanager
def registered(alias: str, database: dict[str, Any]) -> Iterator[str]:
    """Make it one of Django's `connections`. Those that any thread opened are closed at the end.

    An alias is used once: a thread that lives on would keep its connection to what the alias stood for before.
    """
    opened: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **_: Any) -> None:
        if connection.alias == alias:
            opened.append(connection)

    connections.settings[alias] = database
    connections.configure_settings(connections.settings)
    connection_created.connect(note)
    try:
        yield alias
    finally:
        connection_created.disconnect(note)
        for connection in opened:
            connection.inc_thread_sharing()
            connection.close()
        with suppress(AttributeError):  # this thread has not used it
            del connections[alias]
        del connections.settings[alias]
        database["NAME"] = ENDED  # for a thread that lives on, which would connect again: to what is the next test's


def environment(database: dict[str, Any]) -> dict[str, str]:
    """Return what a process needs in its environment to have this as DATABASES["default"]."""
    return {"DJANGO_SETTINGS_MODULE": "tests.settings", "DELAYQ_TEST_DATABASES": json.dumps({"default": database})}
