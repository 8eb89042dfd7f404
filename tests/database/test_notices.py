"""On PostgreSQL a commit notifies workers of what is due soon; where it can't, they look."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import time

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage, OnConflict, Pause, SettleAction
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend, enqueue, timer
from django_delayq.store.bulk_copy import copy_missing, copy_new
from django_delayq.store.database import Database
from django_delayq.store.timer import DatabaseTimer
from django_delayq.support.timestamps import to_epoch_ms
from tests.brokers.rig import settlement

LONG_S = 60.0  # far longer than a test may take: only a wake-up ends such a wait
HOUR = 3_600_000
WANTS = [ClaimRequest("q", "k", 10)]

NewBackend = Callable[[str], DatabaseBackend]


@pytest.fixture(autouse=True)
def looks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself once he listens: only a notice tells."""
    monkeypatch.setattr(timer, "LOOK_S", HOUR)


def timer_of(backend: DatabaseBackend) -> DatabaseTimer:
    assert isinstance(backend.queue.timer, DatabaseTimer)
    return backend.queue.timer


def send(backend: DatabaseBackend, *ids: str, delay_ms: int = 0, on_conflict: OnConflict = "keep") -> None:
    backend.queue.enqueue([NewMessage(id, Header("q", "k"), b"{}", delay_ms=delay_ms) for id in ids], on_conflict)


@contextmanager
def waiter(backend: DatabaseBackend) -> Iterator[Callable[[], None]]:
    """A worker that listens, found nothing and sleeps; gives what waits until it woke."""
    asleep, woke = threading.Event(), threading.Event()

    def sleep() -> None:
        backend.queue.claim([], lease_ms=60_000, worker="w")
        while not timer_of(backend).is_listening:
            backend.queue.wait(0.01)
        assert backend.queue.claim(WANTS, lease_ms=60_000, worker="w").messages == []
        asleep.set()
        backend.queue.wait(LONG_S)
        woke.set()
        connections.close_all()

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    assert asleep.wait(LONG_S / 2)
    try:
        yield lambda: None if woke.wait(LONG_S / 2) else pytest.fail("still asleep")
    finally:
        backend.queue.wake()
        thread.join(LONG_S / 2)


CHANGES: dict[str, Callable[[DatabaseBackend], object]] = {
    "one send": lambda site: send(site, "new"),
    "several sends": lambda site: send(site, "new", "newer"),
    "a send for soon": lambda site: send(site, "new", delay_ms=100),
    "a replacement": lambda site: send(site, "far", on_conflict="replace"),
    "an earlier due time": lambda site: send(site, "far", on_conflict="earliest"),
    "a reschedule": lambda site: site.queue.reschedule(["far"], at_ms=0),
    "many sends": lambda site: send(site, *(f"{n}" for n in range(100))),
    "a rescue": lambda site: site.queue.rescue(["failed"]),
    "a pause": lambda site: site.presence.pause(Pause("q", None, "x")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_commit_of_another_process_ends_the_wait(
    postgres_database: str, new_backend: NewBackend, change: Callable[[DatabaseBackend], object]
) -> None:
    site, worker = new_backend(postgres_database), new_backend(postgres_database)
    send(site, "failed")
    (claimed,) = site.queue.claim(WANTS, lease_ms=60_000, worker="w").messages
    assert site.queue.apply([settlement(claimed, SettleAction.BURY, error="no good")]) == [True]
    send(site, "far", delay_ms=HOUR)
    with waiter(worker) as awake:
        change(site)
        awake()


@contextmanager
def listening(database: str) -> Iterator[Callable[[], list[list[str]]]]:
    """A session that listens; gives what collects the notices that came, in parts, in order."""
    connection = connections[database]
    with connection.copy().get_new_connection(connection.get_connection_params()) as listens:
        listens.autocommit = True
        listens.execute("LISTEN delayq")
        yield lambda: sorted(notice.payload.split("\x1f") for notice in listens.notifies(timeout=1))


def rows_due_soon(database: str) -> list[list[str]]:
    """Return what a notice of each row that is due says: once of those that are due at the same time."""
    rows = ReadyMessage.objects.using(database).filter(due_at__lte=time() * 1000)
    told = {("default", row.queue, row.key, str(to_epoch_ms(row.due_at))) for row in rows}
    return [list(one) for one in sorted(told)]


def test_a_commit_notifies_of_what_is_due_soon_and_a_rollback_of_nothing(
    postgres_database: str, new_backend: NewBackend
) -> None:
    site = new_backend(postgres_database)
    with listening(postgres_database) as heard:
        with transaction.atomic(postgres_database):
            send(site, "a", "b")
            send(site, "c")
            send(site, "far", delay_ms=HOUR)
            site.queue.enqueue([NewMessage("d", Header("q", "other"), b"{}")])
        with transaction.atomic(postgres_database):
            send(site, "e")
            transaction.set_rollback(True, postgres_database)
        send(site, "later", delay_ms=HOUR)
        assert heard() == rows_due_soon(postgres_database)


@pytest.mark.parametrize("copy", [enqueue.insert_new, copy_new, copy_missing])
def test_many_at_once_notify_of_each_pair_that_some_are_due_and_that_others_are_soon(
    postgres_database: str, new_backend: NewBackend, copy: Callable[[Database, list[NewMessage]], int]
) -> None:
    site = new_backend(postgres_database)
    messages = [NewMessage(f"{n}", Header("q", f"k{n % 2}"), b"{}", delay_ms=n // 50 * 500) for n in range(100)]
    messages += [NewMessage(f"far {n}", Header("q", "far"), b"{}", delay_ms=HOUR) for n in range(100)]
    with listening(postgres_database) as heard:
        assert copy(site.database, messages) == 200
        of_pairs = [["default", "q", key, due] for key in ("k0", "k1") for due in ("-1", "0")]
        assert heard() == of_pairs


def test_a_few_copied_rows_that_fall_due_one_after_the_other_are_all_told_of(
    postgres_database: str, new_backend: NewBackend
) -> None:
    site = new_backend(postgres_database)
    with listening(postgres_database) as heard:
        copy_new(site.database, [NewMessage(f"{n}", Header("q", "k"), b"{}", delay_ms=n * 500) for n in (1, 2, 3)])
        assert heard() == [["default", "q", "k", "-1"]]  # look at what falls due in the next seconds


def test_what_a_notice_tells_of_is_claimed_without_a_look(postgres_database: str, new_backend: NewBackend) -> None:
    site, worker = new_backend(postgres_database), new_backend(postgres_database)
    with waiter(worker) as awake:
        send(site, "new")
        awake()
    with CaptureQueriesContext(connections[postgres_database]) as captured:
        claims = worker.queue.claim(WANTS, lease_ms=60_000, worker="w")
    assert [one.id for one in claims.messages] == ["new"]
    assert len(captured) <= 2  # the second asks for leases that have ended, once a second
    with CaptureQueriesContext(connections[postgres_database]) as captured:
        assert worker.queue.claim(WANTS, lease_ms=60_000, worker="w").messages == []
    assert len(captured) == 0


def test_of_many_that_are_due_at_once_a_worker_claims_without_a_look(
    postgres_database: str, new_backend: NewBackend
) -> None:
    site, worker = new_backend(postgres_database), new_backend(postgres_database)
    ids = [f"{n}" for n in range(50)]
    with waiter(worker) as awake:
        send(site, *ids)
        awake()
    wants = [ClaimRequest("q", "k", 100)]
    with CaptureQueriesContext(connections[postgres_database]) as captured:
        assert len(worker.queue.claim(wants, lease_ms=60_000, worker="w").messages) == len(ids)
        assert worker.queue.claim(wants, lease_ms=60_000, worker="w").messages == []
    assert len(captured) <= 2  # the second asks for leases that have ended, once a second
