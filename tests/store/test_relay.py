"""The relay: only what is near is at the broker, and all that is near comes there, whatever the broker loses."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import sleep

import pytest
from django.db import connections
from django.db.models import F
from django.utils import timezone

from django_delayq import Send, reschedule_delay_messages, send_delay_message, send_delay_messages
from django_delayq.brokers.base import Alarm, SettleAction
from django_delayq.conf import Options
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.claim import claim as lease
from django_delayq.store.relay import rebuild, relay
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.relaying import Relaying
from tests.brokers.rig import settlement
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, alarms, claim
from tests.store.test_locked_rows import locked
from tests.worker.rig import PATIENCE_S

HOUR_MS = 3_600_000


def _relay(broker: DatabaseBackend) -> int:
    return relay(broker.database, broker.queue.timer, HOUR_MS)


def test_only_what_is_within_the_horizon_is_placed(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="near", delay="30m")
    send_delay_message("k", 1, id="far", delay="2h")
    assert _relay(broker) == 1
    assert alarms(broker) == 1
    assert _relay(broker) == 0
    rows = ReadyMessage.objects.using(database)
    assert dict(rows.values_list("message_id", "placed")) == {"near": True, "far": False}
    rows.update(due_at=F("due_at") - HOUR_MS - 1_000)
    assert _relay(broker) == 1
    assert alarms(broker) == 2


def test_a_change_while_it_was_put_leaves_the_row_to_the_next_pass(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="30m")
    put_alarms = broker.queue.timer.schedule

    def reschedule_meanwhile(*args: object, **options: object) -> None:
        put_alarms(*args, **options)  # type: ignore[arg-type]
        reschedule_delay_messages("a", delay="10m")

    broker.queue.timer.schedule = reschedule_meanwhile  # type: ignore[method-assign]
    _relay(broker)
    assert not ReadyMessage.objects.using(database).get().placed
    broker.queue.timer.schedule = put_alarms  # type: ignore[method-assign]
    assert _relay(broker) == 1


HELD = [f"{n}" for n in range(1_200)]
on_databases_with_row_locks = pytest.mark.parametrize(
    "database", ["postgres_database", "mariadb_database"], ids=["postgresql", "mariadb"], indirect=True
)


@on_databases_with_row_locks
def test_rows_that_another_transaction_holds_wait_and_hold_up_no_other(broker: DatabaseBackend, database: str) -> None:
    send_delay_messages(Send("k", 1, id=id, delay="20m") for id in HELD)
    send_delay_message("k", 1, id="free", delay="30m")
    with locked(database, *HELD):
        assert _relay(broker) == 1, "a full page would ask for another pass at once, as long as they are held"
        assert alarms(broker) == 1
        assert _relay(broker) == 0
    assert _relay(broker) == 1_000
    assert _relay(broker) == 200
    assert alarms(broker) == 1_201


@on_databases_with_row_locks
def test_a_worker_looks_once_a_second_at_rows_that_another_transaction_holds(
    broker: DatabaseBackend, database: str, redis_server: Server
) -> None:
    send_delay_messages(Send("k", 1, id=id, delay="20m") for id in HELD)
    send_delay_message("k", 1, id="free", delay="30m")
    thread = Relaying(broker.queue, LEASE_MS, OutageLog())
    with locked(database, *HELD), redis_server.client() as client:
        thread.start()
        while not alarms(broker):
            sleep(0.05)
        before = client.info("stats")["total_commands_processed"]
        sleep(1.5)
        assert client.info("stats")["total_commands_processed"] - before < 1_000, "of a pass a second"
        thread.close(PATIENCE_S)


def test_a_flushed_broker_gets_all_its_alarms_again(broker: DatabaseBackend, redis_server: Server) -> None:
    broker.queue.maintain(lease_ms=15_000)
    assert broker.queue.alarms_lost
    assert rebuild(broker.database, broker.queue.timer, HOUR_MS) == 0
    soon = timezone.now() + timedelta(minutes=30)
    send_delay_messages([Send("k", 1, id=f"{n}", at=soon) for n in range(1_200)])  # a page ends among equals
    send_delay_message("k", 1, id="last", delay="30m")
    reschedule_delay_messages("0", delay="40m")
    while _relay(broker):
        pass
    with redis_server.client() as client:
        client.flushall()
    broker.queue.maintain(lease_ms=15_000)
    assert broker.queue.alarms_lost
    assert rebuild(broker.database, broker.queue.timer, HOUR_MS) == 1_201
    assert alarms(broker) == 1_201
    broker.queue.maintain(lease_ms=15_000)
    assert not broker.queue.alarms_lost


def _lose_all(broker: DatabaseBackend, redis_server: Server) -> None:
    """A flush, and its rebuild by another worker."""
    with redis_server.client() as client:
        client.flushall()
    assert broker.queue.timer.maintain(lease_ms=15_000).alarms_lost
    assert rebuild(broker.database, broker.queue.timer, HOUR_MS) is not None


def test_a_flush_and_its_rebuild_between_the_put_and_the_mark_lose_nothing(
    broker: DatabaseBackend, redis_server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_delay_message("k", 1, id="a", delay="30m")
    put_alarms = broker.queue.timer.schedule

    def put_and_lose(alarms: Sequence[Alarm]) -> None:
        put_alarms(alarms)
        monkeypatch.undo()
        _lose_all(broker, redis_server)

    monkeypatch.setattr(broker.queue.timer, "schedule", put_and_lose)
    _relay(broker)
    assert ReadyMessage.objects.using(database).get().placed
    assert alarms(broker) == 1


def test_a_flush_and_its_rebuild_between_an_alarm_and_its_row_lose_nothing(
    broker: DatabaseBackend, redis_server: Server, database: str
) -> None:
    send_delay_message("k", 1, id="a")
    while not (rung := broker.queue.timer.take_due(WANT, lease_ms=LEASE_MS, worker="dead").alarms):
        broker.queue.wait(1)
    _lose_all(broker, redis_server)
    assert len(lease(broker.database, rung, WANT, LEASE_MS, "dead").messages) == 1
    assert ReadyMessage.objects.using(database).get().placed
    assert alarms(broker) == 1, "it leads to the row when the worker dies"


def test_a_rebuild_whose_worker_died_is_done_by_another_within_a_lease(
    broker: DatabaseBackend, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_delay_message("k", 1, id="a", delay="30m")
    broker.queue.timer.maintain(lease_ms=15_000)

    def die(_: Sequence[Alarm]) -> None:
        raise SystemExit

    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as dead:
        patch.setattr(broker.queue.timer, "schedule", die)
        with pytest.raises(SystemExit):
            dead.submit(rebuild, broker.database, broker.queue.timer, HOUR_MS).result()
        dead.submit(connections.close_all).result()
    assert rebuild(broker.database, broker.queue.timer, HOUR_MS) is None
    with redis_server.client() as client:
        assert 0 < client.pttl("{delayq:0}:rebuild") <= Options().lease
        client.delete("{delayq:0}:rebuild")  # as it does by itself
    assert rebuild(broker.database, broker.queue.timer, HOUR_MS) == 1


def test_an_alarm_for_a_row_that_runs_gives_it_to_nobody_else(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a")
    (held,) = claim(broker)
    broker.queue.maintain(lease_ms=15_000)
    rebuild(broker.database, broker.queue.timer, HOUR_MS)
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="other").messages == []
    assert broker.queue.apply([settlement(held, SettleAction.FINISH)]) == [True]
