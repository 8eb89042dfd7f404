"""A database that takes no writes, as the old primary after a failover, is waited for as one that is away."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_delayq import Message, send_delay_message
from django_delayq.brokers.base import SettleAction
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from django_delayq.core.errors import StoreUnavailable
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.executors.threads import in_thread
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.options import Options
from django_delayq.worker.settler import Settler
from django_delayq.worker.worker import Worker
from tests.brokers.rig import settlement
from tests.store.support import LEASE_MS, WANT, claim, wait_until_due
from tests.worker.rig import PATIENCE_S, make_handler

READ_ONLY = {
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "sqlite": "PRAGMA query_only = 1",
}


def make_read_only(connection: BaseDatabaseWrapper) -> None:
    """Have this session refuse writes, as one with the old primary does."""
    with connection.cursor() as cursor:
        cursor.execute(READ_ONLY[connection.vendor])


@contextmanager
def read_only(database: str) -> Iterator[None]:
    """For a while each new session of `database` refuses writes, whichever thread's it is."""

    def refuse(connection: BaseDatabaseWrapper, **_: Any) -> None:
        if connection.alias == database:
            make_read_only(connection)

    connection_created.connect(refuse)
    try:
        yield
    finally:
        connection_created.disconnect(refuse)


def until_said(caplog: pytest.LogCaptureFixture, text: str) -> None:
    until = monotonic() + PATIENCE_S
    while text not in caplog.text:
        assert monotonic() < until, caplog.text
        sleep(0.01)


def nothing(message: Message[Any]) -> None: ...


MOVES: dict[str, Callable[[DatabaseBackend, list[Any]], object]] = {
    "settle": lambda broker, held: broker.queue.apply([settlement(held[0], SettleAction.FINISH)]),
    "renew": lambda broker, held: broker.queue.renew([held[0]], LEASE_MS),
    "claim": lambda broker, _: broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w"),
    "upkeep": lambda broker, _: broker.queue.maintain(lease_ms=LEASE_MS),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_move_says_that_it_is_away_and_the_next_connects_anew(
    broker: DatabaseBackend, database: str, move: str
) -> None:
    send_delay_message("k", 1, id="held")
    held = claim(broker)
    send_delay_message("k", 1, id="due")
    if move == "upkeep":
        ReadyMessage.objects.using(database).filter(message_id="held").update(lease_until=1, crashes=2)
    wait_until_due(broker)
    make_read_only(connections[database])
    with pytest.raises(StoreUnavailable, match=r"(?i)read.?only"):
        MOVES[move](broker, held)
    assert MOVES[move](broker, held)


def test_what_has_ended_waits_for_longer_than_its_lease_and_has_ended_then(
    broker: DatabaseBackend, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_delayq")
    ids = {"a", "b", "c"}
    for id in ids:
        send_delay_message("k", 1, id=id)
    handler = make_handler(nothing)
    ended = [Lease(each, handler, 0.0, monotonic(), 0.0) for each in claim(broker)]
    ReadyMessage.objects.using(database).update(lease_until=1)
    outage = OutageLog()
    settling = Settler(broker, Leases(broker, LEASE_MS, outage), outage)
    with read_only(database):
        settling.start()
        for lease in ended:
            settling.add(lease, settlement(lease.claimed, SettleAction.FINISH))
        until_said(caplog, "Trying again until it works")
    settling.close(PATIENCE_S)
    assert {row.message_id for row in FinishMessage.objects.using(database)} == ids
    assert "The database is back." in caplog.text


@pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"], indirect=True)
def test_what_lapsed_meanwhile_is_left_to_who_renews_it_then(broker: DatabaseBackend, database: str) -> None:
    """Nobody could renew, though the database answered: so another worker takes over nothing at once."""
    for id in ("once", "suspect"):
        send_delay_message("k", 1, id=id, at_most_once=id == "once")
    held = claim(broker)
    alias = get_alias()
    assert alias.store is not None
    other = DatabaseBackend(alias, alias.store, RedisBroker(alias))
    other.queue.maintain(lease_ms=LEASE_MS)
    ReadyMessage.objects.using(database).update(lease_until=1, due_at=1, crashes=1)
    other.queue.look_again()
    make_read_only(connections[database])
    with read_only(database):
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                other.queue.maintain(lease_ms=LEASE_MS)
    assert other.queue.maintain(lease_ms=LEASE_MS).buried == []
    assert broker.queue.apply([settlement(one, SettleAction.FINISH) for one in held]) == [True, True]
    other.close()


def test_a_worker_outlives_it_and_goes_on(
    broker: DatabaseBackend, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_delayq")
    ran = Event()
    send_delay_message("k", 1, id="a")
    handler = make_handler(lambda message: ran.set())
    worker = Worker(get_alias(), broker, {"k": handler}, Options())
    thread = Thread(target=worker.run)
    with read_only(database):
        thread.start()
        until_said(caplog, "Trying again until it works")
    try:
        assert ran.wait(PATIENCE_S)
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
    assert [row.failures for row in FinishMessage.objects.using(database)] == [0]


@pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"], indirect=True)
@pytest.mark.parametrize("atomic", [True, False])
def test_a_handler_that_meets_it_fails_and_its_thread_connects_anew(
    broker: DatabaseBackend, database: str, atomic: bool
) -> None:
    def write(message: Message[Any]) -> None:
        Group.objects.using(database).create(name="written")

    send_delay_message("k", 1, id="a")
    handler = make_handler(write, atomic=atomic, backoff=0)
    with in_thread(database, AttemptEvents("w")) as run:
        (claimed,) = claim(broker)
        make_read_only(connections[database])
        failed = run(Lease(claimed, handler, 0.0, math.inf, 0.0))
        assert failed is not None
        assert failed.action is SettleAction.RETRY
        assert connections[database].connection is None
        assert broker.queue.apply([failed]) == [True]
        (claimed,) = claim(broker)
        finished = run(Lease(claimed, handler, 0.0, math.inf, 0.0))
    assert finished is not None
    assert finished.action is SettleAction.FINISH
