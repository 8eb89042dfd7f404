"""Full memory: a send fails and changes nothing; whatever frees memory, or holds a lease, goes on."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest
import redis

from django_delayq.brokers.base import Alarm, ClaimRequest, Pause, PermitRequest, SettleAction, WorkerInfo
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.core.message import State
from tests.brokers.rig import LEASE_MS, Rig
from tests.servers import Server

Full = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def full(own_server: Server) -> Full:
    """A context in which the server has no memory left."""

    @contextmanager
    def full() -> Iterator[None]:
        with own_server.client() as client:
            client.config_set("maxmemory", 1)
            yield
            client.config_set("maxmemory", 0)

    return full


def test_a_send_fails_clearly_and_changes_nothing(own_rig: Rig, full: Full) -> None:
    own_rig.send("a")
    before = own_rig.broker.queue.audit()
    with full(), pytest.raises(BrokerUnavailable, match="no memory left"):
        own_rig.send("b")
    assert own_rig.broker.queue.get("b") is None
    assert own_rig.broker.queue.audit() == before


def test_alarms_fail_clearly(own_rig: Rig, full: Full) -> None:
    with full(), pytest.raises(BrokerUnavailable, match="no memory left"):
        own_rig.timer.schedule([Alarm("q", "k", "1")])


def test_a_slot_is_held_on_and_given_back(own_rig: Rig, full: Full) -> None:
    first, second = PermitRequest("k", "", 1, 1), PermitRequest("k", "", 2, 1)
    assert own_rig.broker.limiter.acquire([first], lease_ms=LEASE_MS) == [None]
    with full():
        assert own_rig.broker.limiter.acquire([first], lease_ms=2 * LEASE_MS) == [None]
    own_rig.advance(LEASE_MS)
    (refused,) = own_rig.broker.limiter.acquire([second], lease_ms=LEASE_MS)
    assert refused is not None
    with full():
        own_rig.broker.limiter.release([first])
    assert own_rig.broker.limiter.acquire([second], lease_ms=LEASE_MS) == [None]


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl"])
def test_who_holds_a_permit_or_has_had_a_turn_is_not_evicted(own_server: Server, own_rig: Rig, policy: str) -> None:
    asks = [PermitRequest("slot", "", 1, 1), PermitRequest("turn", "", 2, None, 60_000_000)]
    assert own_rig.broker.limiter.acquire(asks, lease_ms=LEASE_MS) == [None, None]
    with own_server.client() as client:
        client.config_set("maxmemory-policy", policy)
        with own_server.memory_full(), pytest.raises(redis.OutOfMemoryError):
            client.set("other", "value")  # what may be evicted is evicted before that is refused
    again = [replace(ask, token=ask.token + 2) for ask in asks]
    assert None not in own_rig.broker.limiter.acquire(again, lease_ms=LEASE_MS)


def test_a_claimed_alarm_goes_back(own_rig: Rig, full: Full) -> None:
    own_rig.timer.schedule([Alarm("q", "k", "1")])
    own_rig.advance(1)
    claimed = own_rig.broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w").alarms
    with full():
        own_rig.timer.drop(claimed, claimed)
    (alarm,) = own_rig.timer.find_alarms("q", "k", ["1"])
    assert (alarm.due_ms is None, alarm.lease_end_ms) == (False, None)


@pytest.mark.parametrize("verb", list(SettleAction))
def test_a_worker_claims_and_settles(own_rig: Rig, full: Full, verb: SettleAction) -> None:
    own_rig.send("a", "b")
    with full():
        first, second = own_rig.claim()
        assert own_rig.settle(first, verb, delay_ms=5_000, error="no good", detail="Traceback")
        assert own_rig.settle(second, SettleAction.FINISH)
    assert own_rig.broker.queue.audit().differences == []


def test_a_claim_that_finds_nothing_passes(own_rig: Rig, full: Full) -> None:
    with full():
        assert own_rig.claim() == []


def test_leases_are_renewed_and_reclaimed(own_rig: Rig, full: Full) -> None:
    own_rig.send("a", "b")
    first, _ = own_rig.claim()
    own_rig.advance(LEASE_MS - 1_000)
    with full():
        assert own_rig.broker.queue.renew([first], LEASE_MS) == [True]
    own_rig.advance(2_000)
    with full():
        assert own_rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 1
    assert own_rig.states("a", "b") == [State.RUNNING, State.READY]


def test_upkeep_tells_that_what_is_new_finds_no_place(own_rig: Rig, own_server: Server, full: Full) -> None:
    with full():
        away = own_rig.broker.queue.maintain(lease_ms=LEASE_MS).away
    assert away == (
        f"Redis at {own_server.url} has no memory left (maxmemory): give it more. "
        "It said: command not allowed when used memory > 'maxmemory'."
    )
    assert own_rig.broker.queue.maintain(lease_ms=LEASE_MS).away == ""


def test_a_suspect_is_claimed(own_rig: Rig, full: Full) -> None:
    own_rig.send("a")
    own_rig.crash(times=2)
    with full():
        (suspect,) = own_rig.claim_suspect()
        assert own_rig.settle(suspect, SettleAction.RETRY, delay_ms=0)
    assert own_rig.broker.queue.audit().differences == []


def test_an_operator_may_mend(own_rig: Rig, full: Full) -> None:
    own_rig.bury("e")
    own_rig.send("a", "b", "c", delay_ms=60_000)
    with full():
        assert own_rig.broker.queue.cancel(["a"]) == [True]
        assert own_rig.broker.queue.reschedule(["b"], delay_ms=1) == [True]
        assert own_rig.broker.queue.purge(["c"]) == [True]
        assert own_rig.broker.queue.rescue(["e"]) == [True]
    assert own_rig.broker.queue.audit().differences == []


def test_a_heartbeat_passes(own_rig: Rig, full: Full) -> None:
    with full():
        own_rig.broker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
    assert [worker.name for worker in own_rig.broker.presence.workers()] == ["w"]


def test_an_operator_may_pause_and_resume(own_rig: Rig, full: Full) -> None:
    own_rig.broker.presence.pause(Pause("q", None, "old"))
    with full():
        assert own_rig.broker.presence.resume("q", None)
        own_rig.broker.presence.pause(Pause(None, "k", "Redis is full"))
    assert [pause.names for pause in own_rig.broker.presence.pauses()] == ["key 'k'"]
