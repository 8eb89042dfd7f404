"""The thread that looks after the tables: what it does beside the window, and that it does one where another fails."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, send_delay_message, send_delay_messages
from django_delayq.brokers.base import ClaimRequest, SettleAction, WorkerInfo
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.polling import LATE_MS, Sweep
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.maintenance import ParkedKeys, TableMaintenance
from tests.brokers.rig import settlement
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, claim
from tests.worker.rig import PATIENCE_S

MONTH_MS = 31 * 86_400_000


@pytest.fixture
def database(sqlite_database: str) -> str:
    """One database: the thread is the same on each."""
    return sqlite_database


@pytest.fixture
def server(start_redis: Callable[..., Server]) -> Server:
    """A Redis of the test's own."""
    return start_redis()


@pytest.fixture
def redis_url(server: Server) -> str:
    """LOCATION of that one."""
    return server.url


@pytest.fixture
def thread(broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableMaintenance]:
    """Ended with the test."""
    thread = TableMaintenance(broker.queue, LEASE_MS, OutageLog())
    yield thread
    thread.close(PATIENCE_S)


def _until(broker: DatabaseBackend, is_so: Callable[[], object]) -> None:
    until = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < until, "it did not come to that"
        broker.queue.wait(0.05)


def _finish_long_ago(broker: DatabaseBackend) -> Any:
    send_delay_message("k", 1, id="old")
    broker.queue.apply([settlement(one, SettleAction.FINISH) for one in claim(broker)])
    rows = FinishMessage.objects.using(broker.database.using)
    rows.update(ended_at=F("ended_at") - MONTH_MS)
    return rows


def test_it_prunes_and_sweeps(broker: DatabaseBackend, thread: TableMaintenance) -> None:
    finished = _finish_long_ago(broker)
    send_delay_message("k", 1, id="lost", delay="30m")
    rows = ReadyMessage.objects.using(broker.database.using)
    rows.update(due_at=F("due_at") - 1_800_000 - LATE_MS - 1)
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    thread.start()
    assert [one.id for one in claim(broker)] == ["lost"]
    _until(broker, lambda: not finished.exists())


def test_a_key_with_due_messages_and_no_handler_anywhere_is_warned_of_once(
    broker: DatabaseBackend, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("mine", "served", "lost", "lost", "later"):
        send_delay_message(key, 1, delay="1h" if key == "later" else None)
    ReadyMessage.objects.using(broker.database.using).update(due_at=F("due_at") - 1)
    broker.presence.heartbeat(WorkerInfo("other", ["default"], ["served"], running=0, started_ms=0))
    parked = ParkedKeys(broker, broker.queue, ["mine"])
    parked.warn_due()
    assert caplog.text == "", "the workers that start with this one are not known yet"
    parked.warn()
    parked.warn()
    assert [record.getMessage() for record in caplog.records] == [
        "Messages of key 'lost' are due in queue 'default', and no live worker has a handler for it. "
        "Handlers are found in the `delayed` module of each installed app."
    ]


@pytest.mark.parametrize("keys", [1, 25])
def test_one_sweep_has_all_claimed_of_which_the_broker_has_lost_very_many(
    broker: DatabaseBackend, thread: TableMaintenance, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    wants = [ClaimRequest("default", f"k{n}", 100 // keys) for n in range(keys)]
    found = iter([{(want.queue, want.key) for want in wants}])
    monkeypatch.setattr(Sweep, "find", lambda self, requests: next(found, set()))
    ids = {f"{n}" for n in range(2_500)}
    send_delay_messages(Send(f"k{n % keys}", 1, id=id, delay="30m") for n, id in enumerate(ids))
    rows = ReadyMessage.objects.using(broker.database.using)
    rows.update(due_at=F("due_at") - 1_800_000 - LATE_MS - 1)
    assert broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages == []
    thread.start()
    given: set[str] = set()

    def claim_more() -> bool:
        given.update(one.id for one in broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages)
        return given == ids

    def asks_no_table() -> bool:
        with CaptureQueriesContext(connections[broker.database.using]) as captured:
            broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w")
        return len(captured) == 0

    _until(broker, claim_more)
    _until(broker, asks_no_table)


def test_it_prunes_while_the_broker_is_away(broker: DatabaseBackend, server: Server, thread: TableMaintenance) -> None:
    finished = _finish_long_ago(broker)
    server.kill()
    thread.start()
    _until(broker, lambda: not finished.exists())
