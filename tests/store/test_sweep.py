"""The sweep: an overdue row without an alarm is claimed from the table, if its key has slots free."""

import pytest
from django.db.models import F

from django_delayq import send_delay_message
from django_delayq.brokers.base import Alarm, Claimed, ClaimRequest, Header
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.polling import LATE_MS, RECENT_MS, Sweep, Underfilled
from django_delayq.support.timestamps import HOUR_MS
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, alarms, claim


def _lose(redis_server: Server, broker: DatabaseBackend, *ids: str, key: str = "k") -> None:
    """Send messages whose alarms the broker loses without a word, and let them become late."""
    for id in ids:
        send_delay_message(key, 1, id=id, delay="30m")
    rows = ReadyMessage.objects.using(broker.database.using).filter(message_id__in=ids)
    rows.update(due_at=F("due_at") - 1_800_000 - LATE_MS - 1)
    with redis_server.client() as client:
        client.delete("{delayq:0}:wait:default:k")


def test_an_overdue_row_without_an_alarm_is_claimed_from_the_table(
    broker: DatabaseBackend, redis_server: Server
) -> None:
    _lose(redis_server, broker, "a", "b")
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    broker.queue.backlog |= Sweep(broker.database).find(broker.queue.underfilled.requests())
    assert broker.queue.backlog == {("default", "k")}
    assert {each.id for each in claim(broker)} == {"a", "b"}
    assert alarms(broker) == 0


def test_what_is_late_by_less_leased_or_of_an_unwanted_key_is_left_alone(
    broker: DatabaseBackend, redis_server: Server, database: str
) -> None:
    _lose(redis_server, broker, "leased", "young")
    _lose(redis_server, broker, "unwanted", key="other")
    rows = ReadyMessage.objects.using(database)
    rows.filter(message_id="leased").update(lease_until=F("due_at") + HOUR_MS)
    rows.filter(message_id="young").update(due_at=F("due_at") + 30 * LATE_MS)
    assert Sweep(broker.database).find(WANT) == set()


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_a_sweep_that_took_long_begins_at_the_low_end_seldom_and_looks_at_what_fell_due_lately(
    broker: DatabaseBackend, redis_server: Server, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    clock = iter([0.0, 3.0, 4.0, 5.0, 62.9, 63.1, 63.1])
    monkeypatch.setattr("django_delayq.store.polling.monotonic", lambda: next(clock))
    sweep = Sweep(broker.database)
    assert sweep.find(WANT) == set()  # takes 3 s
    _lose(redis_server, broker, "old")
    ReadyMessage.objects.using(database).update(due_at=F("due_at") - RECENT_MS)
    assert sweep.find(WANT) == set()
    _lose(redis_server, broker, "lately")
    assert sweep.find(WANT) == {("default", "k")}
    ReadyMessage.objects.using(database).filter(message_id="lately").delete()
    assert sweep.find(WANT) == set()
    assert sweep.find(WANT) == {("default", "k")}


def test_without_a_hungry_key_nothing_is_looked_for(broker: DatabaseBackend, redis_server: Server) -> None:
    _lose(redis_server, broker, "a")
    assert Sweep(broker.database).find([]) == set()


@pytest.mark.parametrize(("left", "short"), [(False, ["b", "some", "stale"]), (True, ["b"])])
def test_a_key_is_unfed_from_a_claim_that_came_short_until_one_that_fills_it(left: bool, short: list[str]) -> None:
    underfilled = Underfilled()
    wants = [
        ClaimRequest("default", key, count) for key, count in {"a": 1, "b": 1, "some": 2, "stale": 1, "busy": 0}.items()
    ]
    heard = [Alarm("default", key, "1") for key in ("a", "some", "stale")]
    given = [Claimed("id", 1, 0, Header("default", key), b"1") for key in ("a", "some")]
    underfilled.note(wants, heard, given, left=left)
    assert sorted(want.key for want in underfilled.requests()) == short
    underfilled.note(wants, [], [], left=left)
    assert sorted(want.key for want in underfilled.requests()) == ["a", "b", "some", "stale"]
    underfilled.note(wants[:1], [], [], left=left)
    assert [want.key for want in underfilled.requests()] == ["a"], "the others are paused, or have no slot free"


def test_a_pair_whose_alarms_are_lost_is_claimed_from_the_table_until_a_claim_of_it_finds_no_more(
    broker: DatabaseBackend, redis_server: Server
) -> None:
    _lose(redis_server, broker, "a", "b", "c")
    other, one = ClaimRequest("default", "other", 1), ClaimRequest("default", "k", 1)
    broker.queue.backlog = frozenset([("default", "k"), ("default", "other")])  # as a sweep has found

    def claimed(*wants: ClaimRequest) -> list[str]:
        return [each.id for each in broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages]

    assert claimed(other) == []
    assert broker.queue.backlog == {("default", "k")}, "of this one nobody has asked the table"
    found = [*claimed(one), *claimed(one)]
    assert broker.queue.backlog == {("default", "k")}, "there may be more"
    assert sorted(found + claimed(*WANT)) == ["a", "b", "c"]
    assert not broker.queue.backlog
