"""The store's own transactions, and its clock."""

import threading
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from django_delayq import cancel_delay_messages, reschedule_delay_messages, send_delay_message
from django_delayq.brokers.base import Header, Put, Verb
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import StoredBroker
from django_delayq.store.database import Database
from tests.brokers.rig import settlement
from tests.store.support import claim

SERVERS = pytest.mark.parametrize(
    "database", ["postgres_database", "mariadb_database"], ids=["postgresql", "mariadb"], indirect=True
)


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
def test_the_victim_of_a_deadlock_is_tried_again(broker: StoredBroker, database: str) -> None:
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
def test_a_deadlock_in_a_callers_transaction_is_the_callers(broker: StoredBroker, database: str) -> None:
    tries = 0

    def deadlock() -> None:
        nonlocal tries
        tries += 1
        raise OperationalError(1213, "Deadlock found when trying to get lock")

    with pytest.raises(OperationalError), transaction.atomic(using=database):
        broker.database.transaction(deadlock)
    assert tries == 1


@SERVERS
def test_the_clock_knows_nothing_of_the_sessions_time_zone(broker: StoredBroker, database: str) -> None:
    before = broker.database.now_ms()
    with connections[database].cursor() as cursor:
        cursor.execute("SET time_zone = '+09:00'" if connections[database].vendor == "mysql" else "SET TIME ZONE '+9'")
    assert 0 <= broker.database.now_ms() - before < 60_000


def test_ids_differ_by_the_case_of_a_letter(broker: StoredBroker, database: str) -> None:
    for id in ("a", "A", "á"):
        assert send_delay_message("k", 1, id=id, delay="1h").created
    assert ReadyMessage.objects.using(database).count() == 3


def test_a_transaction_managed_by_hand_takes_back_whatever_was_done_first(broker: StoredBroker, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    broker.put([Put("buried", Header("default", "k"), b"1")])
    broker.settle([settlement(one, Verb.BURY) for one in claim(broker)])
    before = _rows(database)
    for change in (
        lambda: send_delay_message("k", 1, id="sent"),
        lambda: cancel_delay_messages("a"),
        lambda: reschedule_delay_messages("a", delay="2h"),
        lambda: send_delay_message("k", 2, id="a", on_conflict="replace"),
        lambda: send_delay_message("k", 2, id="a", on_conflict="earliest"),
        lambda: broker.rescue(["buried"]),
        lambda: broker.purge_errors(["buried"]),
    ):
        transaction.set_autocommit(False, using=database)
        try:
            change()
        finally:
            transaction.rollback(using=database)
            transaction.set_autocommit(True, using=database)
        assert _rows(database) == before


def _rows(database: str) -> list[Any]:
    tables = (ReadyMessage, FinishMessage, ErrorMessage)
    return [list(table._default_manager.using(database).order_by("pk").values()) for table in tables]
