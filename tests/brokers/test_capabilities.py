"""What a broker says it can do, it does; what it says it can't, it refuses."""

from collections.abc import Callable

import pytest

from django_delayq.brokers.base import Broker, Capability, PermitRequest, Timer
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.core.errors import Unsupported
from tests.brokers.conftest import WITHOUT_STORE, name
from tests.brokers.rig import Rig

USES: dict[Capability, Callable[[Rig], object]] = {
    Capability.MESSAGES: lambda rig: rig.send("b"),
    Capability.TAGS: lambda rig: rig.broker.tagged("t"),
    Capability.ALARMS: lambda rig: rig.broker.alarms("q", "k"),
    Capability.LIMITS: lambda rig: rig.broker.acquire([PermitRequest("k", "", 1, 1)], lease_ms=1),
}
NOT_A_VERB = {Capability.MOVES}


@pytest.mark.parametrize("capability", USES)
def test_a_capability_is_what_its_verbs_do(rig: Rig, capability: Capability) -> None:
    rig.send("a", tag="t")
    if capability in rig.broker.capabilities:
        assert USES[capability](rig)
    else:
        with pytest.raises(Unsupported):
            USES[capability](rig)


def test_every_capability_that_is_a_verb_is_tried() -> None:
    assert set(USES) == set(Capability) - NOT_A_VERB


def test_what_waits_is_counted_by_queue_and_key_with_its_next_due_time(rig: Rig) -> None:
    rig.send("a", delay_ms=3_600_000)
    counts = rig.broker.counts()
    assert [(count.pending, count.next_due_ms is None) for count in counts.waiting] == [(1, False)]


@pytest.mark.parametrize("rig", WITHOUT_STORE, ids=name, indirect=True)
def test_memory_and_redis_can_do_all_that_needs_no_store(rig: Rig) -> None:
    assert rig.broker.capabilities == frozenset(Capability) - {Capability.TAGS}


def test_rabbitmq_is_a_timer_and_no_more() -> None:
    assert RabbitMQBroker.capabilities == frozenset()
    verbs = {name for protocol in Broker.__mro__ for name in vars(protocol) if not name.startswith("_")}
    assert {verb for verb in verbs if hasattr(RabbitMQBroker, verb)} == {
        verb for verb in vars(Timer) if not verb.startswith("_")
    }
