"""The relay: only what is near is at the broker, and all that is near comes there, whatever the broker loses."""

from django.db.models import F

from django_delayq import reschedule_delay_messages, send_delay_message
from django_delayq.brokers.base import Verb
from django_delayq.models import ReadyMessage
from django_delayq.store import StoredBroker
from django_delayq.store.relay import rebuild, relay
from tests.brokers.rig import settlement
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, alarms, claim

HOUR_MS = 3_600_000


def _relay(broker: StoredBroker) -> int:
    return relay(broker.database, broker.clock, HOUR_MS)


def test_only_what_is_within_the_horizon_is_placed(broker: StoredBroker, database: str) -> None:
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


def test_a_change_while_it_was_put_leaves_the_row_to_the_next_pass(broker: StoredBroker, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="30m")
    put_alarms = broker.clock.put_alarms

    def reschedule_meanwhile(*args: object, **options: object) -> None:
        put_alarms(*args, **options)  # type: ignore[arg-type]
        reschedule_delay_messages("a", delay="10m")

    broker.clock.put_alarms = reschedule_meanwhile  # type: ignore[method-assign]
    _relay(broker)
    assert not ReadyMessage.objects.using(database).get().placed
    broker.clock.put_alarms = put_alarms  # type: ignore[method-assign]
    assert _relay(broker) == 1


def test_a_flushed_broker_gets_all_its_alarms_again(broker: StoredBroker, redis_server: Server) -> None:
    broker.upkeep(lease_ms=15_000)
    assert broker.alarms_lost
    assert rebuild(broker.database, broker.clock, HOUR_MS) == 0
    for n in range(1_200):
        send_delay_message("k", 1, id=f"{n}", delay="30m")
    while _relay(broker):
        pass
    with redis_server.client() as client:
        client.flushall()
    broker.upkeep(lease_ms=15_000)
    assert broker.alarms_lost
    assert rebuild(broker.database, broker.clock, HOUR_MS) == 1_200
    assert alarms(broker) == 1_200
    broker.upkeep(lease_ms=15_000)
    assert not broker.alarms_lost


def test_an_alarm_for_a_row_that_runs_gives_it_to_nobody_else(broker: StoredBroker) -> None:
    send_delay_message("k", 1, id="a")
    (held,) = claim(broker)
    broker.upkeep(lease_ms=15_000)
    rebuild(broker.database, broker.clock, HOUR_MS)
    assert broker.claim(WANT, lease_ms=LEASE_MS, worker="other").messages == []
    assert broker.settle([settlement(held, Verb.FINISH)]) == [True]
