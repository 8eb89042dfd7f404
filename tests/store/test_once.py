"""What a job puts into a store once: ids that wait, run, or have ended are left as they are."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction

from django_delayq.brokers.base import Header, NewMessage, SettleAction
from django_delayq.core.errors import BrokerRefused, StoreUnavailable
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.bulk_copy import can_copy, copy_missing, copy_new
from django_delayq.store.database import Database
from django_delayq.store.enqueue import insert_new
from tests.brokers.rig import settlement
from tests.store.support import claim

PutOnce = Callable[[Database, Sequence[NewMessage]], int]
POSTGRES = pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)


@pytest.fixture(params=[insert_new, copy_missing, copy_new], ids=["put", "copy", "copy-new"])
def once(request: pytest.FixtureRequest, broker: DatabaseBackend) -> PutOnce:
    """Each way to put."""
    if request.param is not insert_new and not can_copy(broker.database):
        pytest.skip("only PostgreSQL has COPY")
    put: PutOnce = request.param
    return put


def puts(*ids: str, body: bytes = b"1") -> list[NewMessage]:
    return [NewMessage(id, Header("default", "k", tag="t"), body, at_ms=0) for id in ids]


def test_a_job_run_again_sends_nothing_of_what_waits_runs_or_has_ended(broker: DatabaseBackend, once: PutOnce) -> None:
    broker.queue.enqueue(puts("cancelled", "finished", "buried", "running"))
    broker.queue.cancel(["cancelled"])
    claimed = {message.id: message for message in claim(broker)}
    for id, verb in [("finished", SettleAction.FINISH), ("buried", SettleAction.BURY)]:
        broker.queue.apply([settlement(claimed[id], verb, error="e")])
    assert once(broker.database, puts("waiting")) == 1
    again = puts("cancelled", "finished", "buried", "running", "waiting", "new", "new")
    assert once(broker.database, again) == 1
    ready = ReadyMessage.objects.using(broker.database.using)
    assert sorted(ready.values_list("message_id", flat=True)) == ["new", "running", "waiting"]


def test_a_row_is_what_a_send_would_have_made(broker: DatabaseBackend, once: PutOnce) -> None:
    given = NewMessage(
        "a\\t", Header("q", "k", tag="t", expires_ms=5000, max_attempts=2), b'"back\\\\slash \\t \xc3\xa9"', 7000
    )
    broker.queue.enqueue([given])
    ready = ReadyMessage.objects.using(broker.database.using)
    sent: dict[str, Any] = dict(ready.values().get())
    ready.all().delete()
    assert once(broker.database, [given]) == 1
    made: dict[str, Any] = dict(ready.values().get())
    for row in (made, sent):
        waits = row.pop("due_at") - row["sent_at"]
        assert timedelta(seconds=7) <= waits <= timedelta(seconds=7, milliseconds=1)  # rounded up, if need be
    for moving in ("id", "sent_at", "scheduled_at", "expires_at"):
        assert (made.pop(moving) is None) == (sent.pop(moving) is None)
    assert made == sent


@POSTGRES
def test_what_ends_between_the_look_and_the_insert_is_not_sent_again(broker: DatabaseBackend, once: PutOnce) -> None:
    once(broker.database, puts("a"))
    using = broker.database.using
    row = ReadyMessage.objects.using(using).get()
    created: list[int] = []

    def put_again() -> None:
        created.append(once(broker.database, puts("a", "b")))
        connections.close_all()

    again = threading.Thread(target=put_again)
    with transaction.atomic(using=using):
        fields = {f.attname: getattr(row, f.attname) for f in FinishMessage._meta.fields if hasattr(row, f.attname)}
        row.delete(using=using)
        FinishMessage.objects.using(using).create(**fields, outcome="finished", ended_at=row.sent_at)
        again.start()
        while not waits_for_a_lock(using):
            time.sleep(0.01)
    again.join()
    assert created == [1]
    assert ReadyMessage.objects.using(using).get().message_id == "b"


@POSTGRES
def test_a_copy_fails_as_any_other_statement_does(broker: DatabaseBackend) -> None:
    database = broker.database
    with pytest.raises(BrokerRefused, match=r"run `manage\.py migrate"), database.copying("COPY nowhere TO STDOUT"):
        pass
    with pytest.raises(IntegrityError), database.copying("COPY delayq_pause (alias) FROM STDIN") as copy:
        copy.write("a\n")
    cut = "COPY (SELECT pg_terminate_backend(pg_backend_pid())) TO STDOUT"
    with pytest.raises(StoreUnavailable, match="terminating"), database.available(), database.copying(cut) as copy:
        list(copy)
    assert database.now_ms() > 0  # on a new connection


def waits_for_a_lock(using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test_the_version_of_the_data_is_kept(broker: DatabaseBackend, once: PutOnce) -> None:
    headers = {"old": Header("default", "k"), "new": Header("default", "k", version=3)}
    assert once(broker.database, [NewMessage(id, header, b"1") for id, header in headers.items()]) == 2
    found = {id: broker.queue.get(id) for id in headers}
    assert {id: info and info.header.version for id, info in found.items()} == {"old": None, "new": 3}
