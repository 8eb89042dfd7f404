"""With a store, a kind of failure is new if no message that failed like that before is kept."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_delayq import Message, send_delay_message
from django_delayq.brokers.base import Claimed, Header
from django_delayq.core.transitions import Failure, bury
from django_delayq.models import ErrorMessage
from django_delayq.signals import failure_kind_appeared
from django_delayq.store import DatabaseBackend, queries
from django_delayq.support.timestamps import to_epoch_ms
from django_delayq.worker.failure_kinds import FailureKinds
from django_delayq.worker.leases import Lease
from django_delayq.worker.options import Options
from django_delayq.worker.worker import Worker
from tests.store.support import wait_until_due
from tests.worker.rig import make_handler

pytestmark = pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)


@pytest.fixture
def appeared() -> Iterator[list[str]]:
    """The ids of the first messages of new kinds."""
    ids: list[str] = []

    def note(id: str, **told: Any) -> None:
        ids.append(id)

    failure_kind_appeared.connect(note)
    yield ids
    failure_kind_appeared.disconnect(note)


def fail(message: Message[Any]) -> None:
    raise ValueError("no")


def run_on_a_new_worker(broker: DatabaseBackend, *ids: str) -> None:
    """Let a worker that has seen nothing yet bury these messages."""
    for id in ids:
        send_delay_message("k", 1, id=id)
    wait_until_due(broker)
    Worker(broker.alias, broker, {"k": make_handler(fail, max_attempts=1)}, Options(drain=True)).run()


def test_a_kind_that_is_kept_is_not_new(
    broker: DatabaseBackend, database: str, appeared: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    run_on_a_new_worker(broker, "a", "b")  # both are in the table when it is asked
    assert len(appeared) == 1
    assert f"A kind of failure that is new: ValueError in {__name__}.fail." in caplog.text
    run_on_a_new_worker(broker, "c")
    assert len(appeared) == 1
    ErrorMessage.objects.using(database).all().delete()
    run_on_a_new_worker(broker, "d")
    assert appeared[1:] == ["d"]


def test_a_message_that_fails_in_the_millisecond_of_its_claim_is_new(
    broker: DatabaseBackend, database: str, appeared: list[str]
) -> None:
    run_on_a_new_worker(broker, "a")
    row = ErrorMessage.objects.using(database).get()
    claimed = Claimed("a", 1, 0, Header("default", "k"), b"1", claimed_ms=to_epoch_ms(row.ended_at))
    lease = Lease(claimed, make_handler(fail), 0.0, 0.0, 0.0)
    FailureKinds(broker).note([(lease, bury(claimed, Failure("ValueError: no", fingerprint=row.fingerprint)))])
    assert appeared == ["a", "a"]


def test_the_look_for_a_kind_reads_one_index_and_takes_no_other_for_it(broker: DatabaseBackend, database: str) -> None:
    run_on_a_new_worker(broker, "a")
    with CaptureQueriesContext(connections[database]) as captured:
        assert queries.first_failed_ms(broker.database, "KeyError in shop") is None
    (query,) = captured
    with connections[database].cursor() as cursor:
        (step,) = cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}").fetchall()
    assert "delayq_error_kind (alias=? AND fingerprint>?)" in str(step)
