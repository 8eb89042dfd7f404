"""The sweep: an overdue row whose alarm is gone gets it again, if its key has hands free."""

import pytest
from django.db.models import F

from django_delayq import send_delay_message
from django_delayq.brokers.base import Alarm, Claimed, ClaimRequest, Header
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.relay import LATE_MS, Underfilled, sweep
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, alarms, claim


def _lose(redis_server: Server, broker: DatabaseBackend, *ids: str, key: str = "k") -> None:
    """Send messages whose alarms the broker loses without a word, and let them become late."""
    for id in ids:
        send_delay_message(key, 1, id=id, delay="30m")
    rows = ReadyMessage.objects.using(broker.database.using).filter(message_id__in=ids)
    rows.update(placed=True, due_at=F("due_at") - 1_800_000 - LATE_MS - 1)
    with redis_server.client() as client:
        client.delete("{delayq:0}:wait:default:k")


def test_an_overdue_row_without_an_alarm_gets_one(broker: DatabaseBackend, redis_server: Server) -> None:
    _lose(redis_server, broker, "a", "b")
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    assert (
        sweep(broker.database, broker.queue.timer, broker.queue.alarm_index, broker.queue.underfilled.requests()) == 2
    )
    assert {each.id for each in claim(broker)} == {"a", "b"}


def test_what_is_late_by_less_leased_or_of_an_unwanted_key_is_left_alone(
    broker: DatabaseBackend, redis_server: Server, database: str
) -> None:
    _lose(redis_server, broker, "leased", "young")
    _lose(redis_server, broker, "unwanted", key="other")
    rows = ReadyMessage.objects.using(database)
    rows.filter(message_id="leased").update(lease_until=F("due_at") + 10 * LATE_MS)
    rows.filter(message_id="young").update(due_at=F("due_at") + LATE_MS // 2)
    assert sweep(broker.database, broker.queue.timer, broker.queue.alarm_index, WANT) == 0
    assert alarms(broker) == 0


def test_what_the_broker_has_is_not_put_again(broker: DatabaseBackend, redis_server: Server) -> None:
    _lose(redis_server, broker, "lost", "there", "claimed")
    pks = dict(ReadyMessage.objects.using(broker.database.using).values_list("message_id", "pk"))
    broker.queue.timer.schedule([Alarm("default", "k", str(pks["claimed"]))])
    while not broker.queue.timer.take_due(WANT, lease_ms=LEASE_MS, worker="w").alarms:
        broker.queue.wait(1)
    broker.queue.timer.schedule([Alarm("default", "k", str(pks["there"]))])
    assert sweep(broker.database, broker.queue.timer, broker.queue.alarm_index, WANT) == 1
    assert alarms(broker) == 2


def test_what_the_broker_would_tell_of_far_too_late_is_put_again(
    broker: DatabaseBackend, redis_server: Server, database: str
) -> None:
    _lose(redis_server, broker, "late")
    broker.queue.timer.schedule(
        [Alarm("default", "k", str(ReadyMessage.objects.using(database).get().pk), 10 * LATE_MS)]
    )
    assert sweep(broker.database, broker.queue.timer, broker.queue.alarm_index, WANT) == 1
    assert [each.id for each in claim(broker)] == ["late"]


def test_without_a_hungry_key_nothing_is_looked_for(broker: DatabaseBackend, redis_server: Server) -> None:
    _lose(redis_server, broker, "a")
    assert sweep(broker.database, broker.queue.timer, broker.queue.alarm_index, []) == 0


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
    assert [want.key for want in underfilled.requests()] == ["a"], "the others are paused, or have no hand free"


def test_a_pair_whose_alarms_are_lost_is_claimed_from_the_table_until_a_claim_of_it_finds_no_more(
    broker: DatabaseBackend, redis_server: Server
) -> None:
    _lose(redis_server, broker, "a", "b", "c")
    other, one = ClaimRequest("default", "other", 1), ClaimRequest("default", "k", 1)
    broker.queue.lost_of = frozenset([("default", "k"), ("default", "other")])  # as a sweep has found

    def claimed(*wants: ClaimRequest) -> list[str]:
        return [each.id for each in broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages]

    assert claimed(other) == []
    assert broker.queue.lost_of == {("default", "k")}, "of this one nobody has asked the table"
    found = [*claimed(one), *claimed(one)]
    assert broker.queue.lost_of == {("default", "k")}, "there may be more"
    assert sorted(found + claimed(*WANT)) == ["a", "b", "c"]
    assert not broker.queue.lost_of


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_a_sweep_is_bounded(broker: DatabaseBackend, redis_server: Server, database: str) -> None:
    _lose(redis_server, broker, "a")
    row = ReadyMessage.objects.using(database).values().get()
    rows = [ReadyMessage(**row | {"id": None, "message_id": f"{n}"}) for n in range(1_500)]
    ReadyMessage.objects.using(database).bulk_create(rows)
    assert (
        sweep(broker.database, broker.queue.timer, broker.queue.alarm_index, [ClaimRequest("default", "k", 5_000)])
        == 1_000
    )
