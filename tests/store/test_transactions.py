"""The store's own transactions, and its clock."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from django_delayq import cancel_delay_messages, reschedule_delay_messages, send_delay_message
from django_delayq.brokers.base import Header, NewMessage, Pause, SettleAction
from django_delayq.core.errors import StoreUnavailable
from django_delayq.models import ErrorMessage, FinishMessage, PauseRow, ReadyMessage, Tally
from django_delayq.store import DatabaseBackend
from django_delayq.store.database import Database
from django_delayq.store.operations import prune_errors
from django_delayq.store.sql.postgresql import PostgreSQL, idle_in_transaction_timeout
from tests.brokers.rig import settlement
from tests.store.support import claim
from tests.worker.rig import PATIENCE_S

SERVERS = pytest.mark.parametrize(
    "database", ["postgres_database", "mariadb_database"], ids=["postgresql", "mariadb"], indirect=True
)

POSTGRESQL = pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)


@contextmanager
def by_hand(using: str) -> Iterator[None]:
    """A transaction that is managed by hand, and rolled back at its end."""
    transaction.set_autocommit(False, using=using)
    try:
        yield
    finally:
        transaction.rollback(using=using)
        transaction.set_autocommit(True, using=using)


def _lock_both(database: Database, first: int, second: int, meet: threading.Barrier) -> int:
    """Lock two rows, the second once another transaction has locked it. Gives how many tries it took."""
    tries = 0

    def work() -> int:
        nonlocal tries
        tries += 1
        rows = ReadyMessage.objects.using(database.using).select_for_update()
        rows.get(pk=first)  # by the primary key: another index, or none, may lock more than the row
        if tries == 1:
            meet.wait(30)
        rows.get(pk=second)
        return tries

    return database.transaction(work)


@SERVERS
def test_the_victim_of_a_deadlock_is_tried_again(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    send_delay_message("k", 1, id="b", delay="1h")
    a, b = ReadyMessage.objects.using(database).order_by("message_id").values_list("pk", flat=True)
    meet = threading.Barrier(2)
    tries: list[int] = []

    def other_way_round() -> None:
        tries.append(_lock_both(broker.database, b, a, meet))
        connections.close_all()

    other = threading.Thread(target=other_way_round)
    other.start()
    tries.append(_lock_both(broker.database, a, b, meet))
    other.join()
    assert max(tries) > 1, "it may lock first again, and make the other the next victim"
    assert len(tries) == 2


@SERVERS
@pytest.mark.parametrize("begin", [transaction.atomic, by_hand])
def test_a_deadlock_in_a_callers_transaction_is_the_callers(
    broker: DatabaseBackend, database: str, begin: Callable[[str], AbstractContextManager[None]]
) -> None:
    tries = 0

    def deadlock() -> None:
        nonlocal tries
        tries += 1
        raise OperationalError(1213, "Deadlock found when trying to get lock")

    with pytest.raises(OperationalError), begin(database):
        broker.database.transaction(deadlock)
    assert tries == 1


@POSTGRESQL
def test_a_process_that_is_frozen_in_a_transaction_of_the_stores_keeps_no_row(
    broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    soon = PostgreSQL()
    soon.idle_in_transaction_timeout = idle_in_transaction_timeout(50)
    monkeypatch.setattr(broker.database, "dialect", soon)
    cancelled = []

    def cancel_elsewhere() -> None:
        cancelled.append(cancel_delay_messages("a"))
        connections.close_all()

    def stand_still() -> None:
        broker.database.rows("SELECT id FROM delayq_ready FOR UPDATE")
        other = threading.Thread(target=cancel_elsewhere)
        other.start()
        other.join(PATIENCE_S)  # it waits for the lock
        broker.database.now_ms()

    with pytest.raises(StoreUnavailable, match="idle-in-transaction timeout"), broker.database.available():
        broker.database.transaction(stand_still)
    assert cancelled == [1]
    assert broker.database.now_ms(), "it connects anew"


@POSTGRESQL
@pytest.mark.parametrize("begin", [transaction.atomic, by_hand])
def test_a_callers_transaction_may_stand_still(
    broker: DatabaseBackend, database: str, begin: Callable[[str], AbstractContextManager[None]]
) -> None:
    with begin(database):
        cancel_delay_messages("a")
        assert broker.database.rows("SHOW idle_in_transaction_session_timeout") == [("0",)]


@SERVERS
def test_the_clock_knows_nothing_of_the_sessions_time_zone(broker: DatabaseBackend, database: str) -> None:
    before = broker.database.now_ms()
    with connections[database].cursor() as cursor:
        cursor.execute("SET time_zone = '+09:00'" if connections[database].vendor == "mysql" else "SET TIME ZONE '+9'")
    assert 0 <= broker.database.now_ms() - before < 60_000


def test_ids_differ_by_the_case_of_a_letter(broker: DatabaseBackend, database: str) -> None:
    for id in ("a", "A", "á"):
        assert send_delay_message("k", 1, id=id, delay="1h").created
    assert ReadyMessage.objects.using(database).count() == 3


def test_a_transaction_managed_by_hand_takes_back_whatever_was_done_first(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    broker.queue.enqueue([NewMessage("buried", Header("default", "k"), b"1")])
    broker.queue.apply([settlement(one, SettleAction.BURY) for one in claim(broker)])
    broker.presence.pause(Pause("paused", None, "why"))
    before = _rows(database)
    for change in (
        lambda: send_delay_message("k", 1, id="sent"),
        lambda: cancel_delay_messages("a"),
        lambda: reschedule_delay_messages("a", delay="2h"),
        lambda: send_delay_message("k", 2, id="a", on_conflict="replace"),
        lambda: send_delay_message("k", 2, id="a", on_conflict="earliest"),
        lambda: broker.queue.rescue(["buried"]),
        lambda: broker.queue.purge_failed(["buried"]),
        lambda: broker.presence.pause(Pause("mail", None, "why")),
        lambda: broker.presence.resume("paused", None),
        lambda: prune_errors(broker.database, broker.database.now_ms() + 1),
    ):
        with by_hand(database):
            change()
        assert _rows(database) == before


def _rows(database: str) -> list[Any]:
    tables = (ReadyMessage, FinishMessage, ErrorMessage, Tally, PauseRow)
    return [list(table._default_manager.using(database).order_by("pk").values()) for table in tables]
