"""MySQL and MariaDB at REPEATABLE READ: what a transaction reads is old, but what it is answered is not."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from django.db import connections, transaction

from django_delayq import (
    cancel_delay_messages,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_message,
)
from django_delayq.brokers.base import Header, NewMessage
from django_delayq.core.message import OnConflict, Sent
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.enqueue import insert_new
from tests.worker.rig import PATIENCE_S

pytestmark = pytest.mark.parametrize("database", ["mariadb_database"], ids=["mariadb"], indirect=True)

AT = datetime(2030, 1, 1, tzinfo=UTC)
LATER = datetime(2030, 1, 2, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _repeatable_read(database: str) -> None:
    """Connections of this test have the level that the server has unless it is told another."""
    connections[database].close()
    connections.settings[database]["OPTIONS"]["isolation_level"] = "repeatable read"
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT @@tx_isolation")
        assert cursor.fetchone() == ("REPEATABLE-READ",)


def in_another_thread(work: object) -> None:
    """Do it on another connection, which is closed then."""

    def run() -> None:
        try:
            work()  # type: ignore[operator]
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result(PATIENCE_S)


def send_elsewhere(at: datetime = AT) -> None:
    """Have another connection send and commit a message that this thread's transaction can't see."""
    in_another_thread(lambda: send_delay_message("k", 1, id="a", at=at))
    assert get_delay_message("a") is None


@pytest.mark.parametrize(
    ("on_conflict", "at", "due_at"),
    [
        ("keep", LATER, AT),
        ("replace", LATER, LATER),
        ("replace", AT, AT),
        ("earliest", LATER, AT),
        ("latest", LATER, LATER),
        ("latest", AT, AT),
    ],
)
def test_a_send_answers_the_due_time_of_a_row_that_its_transaction_does_not_see(
    broker: DatabaseBackend, on_conflict: OnConflict, at: datetime, due_at: datetime, database: str
) -> None:
    sent: Sent | None = None
    with transaction.atomic(using=database):
        assert get_delay_message("a") is None
        send_elsewhere()
        sent = send_delay_message("k", 2, id="a", at=at, on_conflict=on_conflict)
    assert (sent.created, sent.due_at) == (False, due_at)
    assert ReadyMessage.objects.using(database).get().due_at == due_at


@pytest.mark.parametrize("at", [AT, LATER])
def test_a_reschedule_finds_it_also_where_it_changes_nothing(
    broker: DatabaseBackend, database: str, at: datetime
) -> None:
    with transaction.atomic(using=database):
        assert get_delay_message("a") is None
        send_elsewhere()
        assert reschedule_delay_messages("a", at=at) == 1
    assert ReadyMessage.objects.using(database).get().due_at == at


def test_a_cancel_finds_it(broker: DatabaseBackend, database: str) -> None:
    with transaction.atomic(using=database):
        assert get_delay_message("a") is None
        send_elsewhere()
        assert cancel_delay_messages("a") == 1
    assert FinishMessage.objects.using(database).get().outcome == "cancelled"


def test_what_ends_while_a_job_puts_it_once_is_not_sent_again(broker: DatabaseBackend, database: str) -> None:
    puts = [NewMessage(id, Header("default", "k"), b"1", at_ms=0) for id in "ab"]
    insert_new(broker.database, puts[:1])
    row = ReadyMessage.objects.using(database).get()
    created: list[int] = []
    again = threading.Thread(target=in_another_thread, args=[lambda: created.append(insert_new(broker.database, puts))])
    with transaction.atomic(using=database):
        fields = {f.attname: getattr(row, f.attname) for f in FinishMessage._meta.fields if hasattr(row, f.attname)}
        row.delete(using=database)
        FinishMessage.objects.using(database).create(**fields, outcome="finished", ended_at=row.sent_at)
        again.start()
        _wait_for_waiting(database)
    again.join()
    assert created == [1]
    assert ReadyMessage.objects.using(database).get().message_id == "b"


def _wait_for_waiting(database: str) -> None:
    """Wait until another transaction waits for a lock."""
    until = time.monotonic() + PATIENCE_S
    while not _somebody_waits(database):
        assert time.monotonic() < until, "nobody waits for a lock"
        time.sleep(0.01)


def _somebody_waits(database: str) -> bool:
    with connections[database].cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        return int(cursor.fetchone()[1]) > 0
