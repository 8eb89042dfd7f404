"""Each command that changes something says so to `django_delayq.audit`, with the user of the operating system."""

import getpass
import logging
import os
import pwd
import socket

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from tests.commands.support import bury, delayq, send
from tests.databases import SiteTables


@pytest.fixture
def stored(settings: Settings, sqlite_database: str) -> Backend:
    """The backend of an alias with a store, which can do all of it, with Django's log in its database."""
    broker = "django_delayq.brokers.database.DatabaseBroker"
    options = {"unknown_keys": "allow"}
    settings.DELAYQ = {"default": {"BROKER": broker, "DATABASE": sqlite_database, "OPTIONS": options}}
    settings.DATABASE_ROUTERS = [SiteTables(sqlite_database)]
    return get_backend()


def test_every_verb_has_a_line(
    stored: Backend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "django_delayq.audit")
    monkeypatch.setenv("LOGNAME", "somebody else")
    assert getpass.getuser() == "somebody else"
    bury(stored, "e1", "e2", "e3")
    send(stored, "a", "b", "c", delay_ms=60_000)
    for command in (
        "cancel a",
        "rescue e1",
        "rescue --all --no-input",
        "purge e1 --no-input",
        "purge --key order.close --no-input",
        "purge --errors --no-input",
        "prune --finished-before 30d --no-input",
        "forget --id a unknown --no-input",
        "pause mail --reason down --until 2100-01-01T00:00Z",
        "resume mail",
        "resume mail",
        "audit --repair",
        "audit",
        "status",
    ):
        delayq(*command.split())
    user = pwd.getpwuid(os.getuid()).pw_name
    who = f'who={user} from="manage.py on {socket.gethostname()}" alias=default'
    lines = [record.getMessage() for record in caplog.records if record.name == "django_delayq.audit"]
    prune = next(line for line in lines if line.startswith("prune"))
    assert prune.startswith(f"prune {who} of=finished before=")
    assert [line for line in lines if line != prune] == [
        f"cancel {who} moved=1 ids=a",
        f"rescue {who} moved=1 ids=e1",
        f"rescue {who} moved=2 ids=e3,e2",
        f"purge {who} moved=1 ids=e1",
        f"purge {who} moved=4 ids=e2,e3,b,c",
        f"forget {who} named=2 removed=1",
        f"pause {who} queue=mail reason=down until=2100-01-01T00:00:00.000Z",
        f"resume {who} queue=mail",
        f"repair {who} repaired=0",
    ]
