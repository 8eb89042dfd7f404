"""The rows of messages that run while somebody asks to cancel them, and workers that are killed at each step of it."""

import os
from collections.abc import Callable
from time import monotonic, sleep

import pytest
from django.db import connections, transaction

from django_delayq import (
    Cancelled,
    Message,
    cancel_delay_messages,
    get_delay_message,
    list_delay_messages,
    send_delay_message,
)
from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import CancelRequest, Claimed
from django_delayq.core import transitions
from django_delayq.core.history import Ended
from django_delayq.core.message import Progress, State
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.monitor import explain
from django_delayq.store import DatabaseBackend
from django_delayq.store.queries import message_facts
from django_delayq.worker import attempt
from tests.store.support import LEASE_MS, claim, rolled_back
from tests.worker.processes import PATIENCE_S, Site, WorkerProcess
from tests.worker.rig import make_handler


def _held(broker: DatabaseBackend, id: str = "a") -> Claimed:
    send_delay_message("k", 1, id=id, tag="t")
    (held,) = claim(broker)
    return held


def _end(broker: DatabaseBackend, held: Claimed) -> None:
    request = CancelRequest("alice", 1)
    span = transitions.Span(held.claimed_ms, held.claimed_ms + 5)
    assert broker.queue.apply([transitions.cancel(held, request, span)]) == [True]


def test_the_finished_row_says_who_asked(broker: DatabaseBackend, database: str) -> None:
    held = _held(broker)
    assert cancel_delay_messages("a", running=True, by="alice") == 1
    row = ReadyMessage.objects.using(database).get()
    assert (row.cancel_by, row.cancel_at is None) == ("alice", False)
    _end(broker, held)
    ended = FinishMessage.objects.using(database).get()
    assert (ended.outcome, ended.error, ended.worker) == ("cancelled", "cancelled while it ran, by alice", "w")
    assert ended.started_at is not None
    facts = message_facts(broker.queue.database, "a")
    assert facts is not None
    (past,) = facts.attempts
    assert (past.outcome, past.error) == (Ended.CANCELLED, "cancelled while it ran, by alice")


def test_a_request_is_a_part_of_the_callers_transaction(broker: DatabaseBackend, database: str) -> None:
    held = _held(broker)
    with rolled_back(database):
        assert cancel_delay_messages("a", running=True, by="alice") == 1
    assert broker.queue.renew([held], LEASE_MS) == [True]


def test_a_tag_finds_what_runs_only_if_that_is_meant(broker: DatabaseBackend) -> None:
    _held(broker)
    send_delay_message("k", 1, id="waits", tag="t", delay="1h")
    assert cancel_delay_messages(tag="t", running=True, by="alice") == 2
    assert cancel_delay_messages(tag="t") == 0
    assert cancel_delay_messages(tag="t", running=True) == 1
    info = get_delay_message("a")
    assert info is not None
    assert (info.state, info.cancelled_by) == (State.RUNNING, "alice")


def test_who_asks_is_said_of_what_runs(broker: DatabaseBackend) -> None:
    with pytest.raises(TypeError, match="running='no' is str; give True or False"):
        cancel_delay_messages("a", running="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give running=True"):
        cancel_delay_messages("a", by="alice")
    with pytest.raises(ValueError, match="control characters"):
        cancel_delay_messages("a", running=True, by="al\nice")


def test_what_runs_shows_its_progress_and_who_asked(broker: DatabaseBackend) -> None:
    held = _held(broker)
    broker.queue.renew([held], LEASE_MS, {(held.id, held.token): "0.4 12 of 30"})
    cancel_delay_messages("a", running=True, by="alice")
    for info in (get_delay_message("a"), next(list_delay_messages(key="k"))):
        assert info is not None
        assert (info.progress, info.cancelled_by) == (Progress(0.4, "12 of 30"), "alice")
    explanation = explain("a")
    assert explanation is not None
    assert explanation.happens_next.startswith("It is cancelled when its handler stops, or when its lease ends.")


def _run(broker: DatabaseBackend, database: str, held: Claimed, func: Callable[[Message[int]], object]) -> object:
    handler: Handler[int, object] = make_handler(func, atomic=True)
    begun = attempt.begin(held, handler, held.claimed_ms, lambda: True)
    assert isinstance(begun, Message)
    return attempt.run_sync(held, handler, begun, database)


@pytest.mark.alters_tables
def test_an_atomic_handler_that_stops_leaves_nothing(broker: DatabaseBackend, database: str) -> None:
    with connections[database].cursor() as cursor:
        cursor.execute("CREATE TABLE written (n bigint NOT NULL)")

    def handler(message: Message[int]) -> None:
        with connections[database].cursor() as cursor:
            cursor.execute("INSERT INTO written VALUES (1)")
        raise Cancelled("it is")

    held = _held(broker)
    cancel_delay_messages("a", running=True)
    assert isinstance(_run(broker, database, held, handler), Cancelled)
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM written")
        assert cursor.fetchone() == (0,)
    _end(broker, held)


def test_an_atomic_handler_that_returns_has_finished(broker: DatabaseBackend, database: str) -> None:
    held = _held(broker)
    cancel_delay_messages("a", running=True)
    assert _run(broker, database, held, lambda message: None) is None
    assert FinishMessage.objects.using(database).get().outcome == "finished"


def test_a_renewal_and_an_end_do_not_wait_for_who_is_about_to_ask(broker: DatabaseBackend, database: str) -> None:
    held = _held(broker)
    if not connections[database].features.has_select_for_update_skip_locked:
        pytest.skip("one writer at a time")
    others = connections[database].copy()
    try:
        with transaction.atomic(using=database):
            cancel_delay_messages("a", running=True)
            mine, connections[database] = connections[database], others
            try:
                assert broker.queue.renew([held], LEASE_MS) == [None]
                assert broker.queue.apply([transitions.release(held)]) == [None]
            finally:
                connections[database] = mine
    finally:
        others.close()
    assert isinstance(broker.queue.renew([held], LEASE_MS)[0], CancelRequest)


# Real workers


def _until(workers: list[WorkerProcess], holds: Callable[[], object]) -> None:
    until = monotonic() + PATIENCE_S
    while not holds():
        assert monotonic() < until, "\n=====\n".join([worker.text[-6000:] for worker in workers])
        sleep(0.05)


def _is_over(database: str) -> bool:
    return FinishMessage.objects.using(database).filter(outcome="cancelled").count() == 1


@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["threads", "processes"])
def test_a_handler_that_looks_stops(
    broker: DatabaseBackend, site: Site, database: str, arguments: tuple[str, ...]
) -> None:
    worker = site.worker(*arguments)
    send_delay_message("heed", "", id="a")
    call = site.line.next_of("a")
    cancel_delay_messages("a", running=True, by="alice")
    _until([worker], lambda: _is_over(database))
    os.kill(call.pid, 0)  # nothing was killed
    assert worker.stop() == 0
    assert FinishMessage.objects.using(database).get(message_id="a").error == "cancelled while it ran, by alice"


@pytest.mark.parametrize("when", ["before the worker knows", "after the worker knows"])
@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["threads", "processes"])
def test_a_worker_that_is_killed_leaves_the_message_cancelled(
    broker: DatabaseBackend, site: Site, database: str, arguments: tuple[str, ...], when: str
) -> None:
    first = site.worker(*arguments)
    send_delay_message("hold", "", id="a")
    site.line.next_of("a")  # it takes no notice
    second = site.worker()
    second.until_says("Queues:")
    cancel_delay_messages("a", running=True, by="alice")
    if when.startswith("after"):
        before = ReadyMessage.objects.using(database).get().lease_until
        _until([first], lambda: ReadyMessage.objects.using(database).get().lease_until != before)
    first.kill()
    _until([first, second], lambda: _is_over(database))
    assert second.stop() == 0
    assert not ReadyMessage.objects.using(database).exists()
    assert site.totals()["cancelled"] == 1
    assert site.line.none_waits()  # it did not start again
