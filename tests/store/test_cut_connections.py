"""A connection to the database that is cut amid a claim: its alarms are there for the next claim."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Thread
from typing import Any

import pytest
from django.db import connections

from django_delayq import send_delay_message
from django_delayq.brokers.base import Alarm, Claims, Want
from django_delayq.errors import StoreUnavailable
from django_delayq.store import StoredBroker
from tests.store.support import LEASE_MS, WANT, alarms, claim, wait_until_due

pytestmark = pytest.mark.parametrize(
    "database", ["postgres_database", "mariadb_database"], ids=["postgresql", "mariadb"], indirect=True
)


def _cut(database: str) -> None:
    """Have the server end this thread's connection."""
    is_postgres = connections[database].vendor == "postgresql"
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if is_postgres else "SELECT connection_id()")
        (number,) = cursor.fetchone()

    def end() -> None:
        with connections[database].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)" if is_postgres else "KILL %s", [number])
        connections[database].close()

    other = Thread(target=end)
    other.start()
    other.join()


@contextmanager
def _cut_amid_claims(broker: StoredBroker, but_for_first: int = 0) -> Iterator[None]:
    """Cut the connection whenever the broker has given alarms, before their rows are leased."""
    claim, number = broker.clock.claim, count(1)

    def claim_and_cut(*args: Any, **options: Any) -> Claims:
        found = claim(*args, **options)
        if found.alarms and next(number) > but_for_first:
            _cut(broker.database.using)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.clock, "claim", claim_and_cut)
        yield


def test_the_alarms_of_a_claim_that_was_cut_are_there_for_the_next_one(broker: StoredBroker) -> None:
    for id in ("a", "b"):
        send_delay_message("k", 1, id=id)
    wait_until_due(broker)
    with _cut_amid_claims(broker), pytest.raises(StoreUnavailable):
        broker.claim(WANT, lease_ms=LEASE_MS, worker="w")
    assert alarms(broker) == 2
    assert {message.id for message in claim(broker)} == {"a", "b"}


def test_what_a_claim_has_leased_before_the_cut_is_kept(broker: StoredBroker) -> None:
    broker.put_alarms([Alarm("default", "k", f"{10**12 + n}") for n in range(5)])
    send_delay_message("other", 1, id="leased before")
    wait_until_due(broker)
    with _cut_amid_claims(broker, but_for_first=1):
        found = broker.claim([Want("default", key, 1) for key in ("other", "k")], lease_ms=LEASE_MS, worker="w")
    assert [message.id for message in found.messages] == ["leased before"]
    assert alarms(broker) == 4, "what was behind the stale one"
