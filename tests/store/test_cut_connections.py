"""A connection to the database that is cut amid a claim: its messages are there for the next claim."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Thread
from typing import Any

import pytest
from django.db import connections
from pytest_django import Settings

from django_delayq import send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Alarm, ClaimRequest, Claims
from django_delayq.conf import get_alias
from django_delayq.core.errors import StoreUnavailable
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests import databases
from tests.proxy import Fault, Proxy, proxy_before
from tests.store.support import LEASE_MS, MOMENT_MS, WANT, alarms, claim, clock_of, wait_until_due

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
def _cut_amid_claims(broker: DatabaseBackend, but_for_first: int = 0) -> Iterator[None]:
    """Cut the connection whenever the broker has given alarms, before their rows are leased."""
    claim, number = broker.queue.timer.take_due, count(1)

    def claim_and_cut(*args: Any, **options: Any) -> Claims:
        found = claim(*args, **options)
        if found.alarms and next(number) > but_for_first:
            _cut(broker.database.using)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.queue.timer, "take_due", claim_and_cut)
        yield


def test_the_alarms_of_a_claim_that_was_cut_are_there_for_the_next_one(broker: DatabaseBackend) -> None:
    for id in ("a", "b"):
        send_delay_message("k", 1, id=id)
    wait_until_due(broker)
    with _cut_amid_claims(broker), pytest.raises(StoreUnavailable):
        broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    assert alarms(broker) == 2
    assert {message.id for message in claim(broker)} == {"a", "b"}


def test_what_a_claim_has_leased_before_the_cut_is_kept(broker: DatabaseBackend) -> None:
    broker.queue.timer.schedule([Alarm("default", "k", f"{10**12 + n}") for n in range(5)])
    send_delay_message("other", 1, id="leased before")
    wait_until_due(broker)
    with _cut_amid_claims(broker, but_for_first=1):
        found = broker.queue.claim(
            [ClaimRequest("default", key, 1) for key in ("other", "k")], lease_ms=LEASE_MS, worker="w"
        )
    assert [message.id for message in found.messages] == ["leased before"]
    assert alarms(broker) == 4, "what was behind the stale one"


@pytest.fixture
def network(database: str, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """The network before the database's server."""
    is_postgres = connections[database].vendor == "postgresql"
    with proxy_before(request.getfixturevalue("postgres_server" if is_postgres else "mariadb_server")) as proxy:
        yield proxy


@pytest.fixture
def far(database: str, network: Proxy, stored_delayq: dict[str, Any], settings: Settings) -> Iterator[DatabaseBackend]:
    """A broker that reaches the database by that network."""
    by_network = connections.settings[database] | {"HOST": "127.0.0.1", "PORT": str(network.port)}
    with databases.registered(f"{database}_far", by_network) as alias:
        settings.DELAYQ = {"default": stored_delayq | {"DATABASE": alias}}
        found = get_backend()
        assert isinstance(found, DatabaseBackend)
        yield found


def _lose_the_answer(broker: DatabaseBackend, network: Proxy) -> Fault:
    """Have the rows of the next claim be leased, and nothing said of it."""
    return network.lose_reply(b"SET lease_until" if broker.database.vendor == "postgresql" else b"\x03COMMIT")


def _lose_what_follows(broker: DatabaseBackend, network: Proxy) -> Fault:
    """Have the next claim fail once it has leased its rows, at its look at the others."""
    broker.queue.timer.schedule([Alarm("default", "k", f"{10**12}")])
    wait_until_due(broker)
    return network.lose_request(b"coalesce(r.lease_until, 0)")


Lose = Callable[[DatabaseBackend, Proxy], Fault]
LOSE = pytest.mark.parametrize("lose", [_lose_the_answer, _lose_what_follows])


def _claim_in_vain(broker: DatabaseBackend, network: Proxy, lose: Lose) -> None:
    """Lease the rows of all that was sent, and hear nothing of it."""
    wait_until_due(broker)
    fault = lose(broker, network)
    with pytest.raises(StoreUnavailable):
        broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    assert fault.happened.is_set()
    assert all(row.token for row in ReadyMessage.objects.using(broker.database.using))


def _is_soon_due(broker: DatabaseBackend) -> bool:
    """Return whether the alarm of the only row rings in a moment."""
    pk = str(ReadyMessage.objects.using(broker.database.using).get().pk)
    (alarm,) = clock_of(broker).timer.find_alarms("default", "k", [pk])
    return (alarm.due_ms or math.inf) < clock_of(broker).queue.counts().now_ms + MOMENT_MS


@LOSE
def test_what_was_leased_without_a_word_is_there_for_the_next_claim(
    far: DatabaseBackend, network: Proxy, lose: Lose
) -> None:
    send_delay_message("k", 1, id="a")
    send_delay_message("k", 1, id="once", at_most_once=True)
    _claim_in_vain(far, network, lose)
    found = far.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages
    assert {message.id: message.crashes for message in found} == {"a": 0, "once": 0}
    assert not ErrorMessage.objects.using(far.database.using).exists()


@LOSE
def test_it_is_there_for_another_worker_too_which_has_taken_its_alarm(
    far: DatabaseBackend, network: Proxy, lose: Lose
) -> None:
    other = DatabaseBackend(get_alias(), far.queue.settings, far.broker)
    send_delay_message("k", 1, id="a")
    _claim_in_vain(far, network, lose)
    assert other.queue.claim(WANT, lease_ms=LEASE_MS, worker="other").messages == []
    assert far.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    assert _is_soon_due(far)
    wait_until_due(far)
    assert [message.id for message in other.queue.claim(WANT, lease_ms=LEASE_MS, worker="other").messages] == ["a"]


def test_a_claim_of_suspects_leaves_it_to_the_claim_that_puts_its_alarm_again(
    far: DatabaseBackend, network: Proxy
) -> None:
    other = DatabaseBackend(get_alias(), far.queue.settings, far.broker)
    send_delay_message("k", 1, id="a")
    _claim_in_vain(far, network, _lose_the_answer)
    assert other.queue.claim(WANT, lease_ms=LEASE_MS, worker="other").messages == []
    far.queue.claim_suspect(WANT, lease_ms=LEASE_MS, worker="w")
    far.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    assert _is_soon_due(far)


def test_what_another_has_leased_since_stays_its_own(far: DatabaseBackend, network: Proxy) -> None:
    send_delay_message("k", 1, id="a")
    _claim_in_vain(far, network, _lose_the_answer)
    ReadyMessage.objects.using(far.database.using).update(token=7, worker="other")
    far.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    row = ReadyMessage.objects.using(far.database.using).get()
    assert (row.token, row.worker) == (7, "other")


def test_a_suspect_that_was_leased_without_a_word_is_there_for_the_next_claim(
    far: DatabaseBackend, network: Proxy
) -> None:
    send_delay_message("k", 1, id="a")
    rows = ReadyMessage.objects.using(far.database.using)
    rows.update(crashes=2, due_at=1)
    _lose_the_answer(far, network)
    with pytest.raises(StoreUnavailable):
        far.queue.claim_suspect(WANT, lease_ms=LEASE_MS, worker="w")
    assert rows.get().token
    far.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    assert [one.id for one in far.queue.claim_suspect(WANT, lease_ms=LEASE_MS, worker="w").messages] == ["a"]
