"""What a broker says it can do, it does; what it says it can't, it refuses."""

from collections.abc import Callable

import pytest

from django_delayq.brokers.base import Ask, Capability
from django_delayq.durations import LONGEST_MS
from django_delayq.errors import Unsupported
from tests.brokers.conftest import WITHOUT_STORE, name
from tests.brokers.rig import Rig

USES: dict[Capability, Callable[[Rig], object]] = {
    Capability.CONFLICTS: lambda rig: rig.broker.get("a"),
    Capability.CANCEL: lambda rig: rig.broker.cancel(["a"]),
    Capability.RESCHEDULE: lambda rig: rig.broker.reschedule(["a"]),
    Capability.TAGS: lambda rig: rig.broker.tagged("t"),
    Capability.PEEK: lambda rig: rig.broker.peek("q", 1),
    Capability.AUDIT: lambda rig: rig.broker.audit(),
    Capability.ALARMS: lambda rig: rig.broker.alarms("q", "k"),
    Capability.LIMITS: lambda rig: rig.broker.acquire([Ask("k", "", 1, 1)], lease_ms=1),
    Capability.ANY_DELAY: lambda rig: rig.send("far", delay_ms=LONGEST_MS),
}
NOT_A_VERB = {Capability.CLOCK, Capability.MOVES, Capability.COUNTS}


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


def test_who_can_t_count_by_set_counts_by_level(rig: Rig) -> None:
    rig.send("a", delay_ms=3_600_000)
    counts = rig.broker.counts()
    if Capability.COUNTS in rig.broker.capabilities:
        assert [(count.pending, count.next_due_ms is None) for count in counts.waiting] == [(1, False)]
    else:
        assert sum(counts.levels) == 1


@pytest.mark.parametrize("rig", [each for each in WITHOUT_STORE if each != "rabbitmq"], ids=name, indirect=True)
def test_memory_and_redis_can_do_all_that_needs_no_store(rig: Rig) -> None:
    assert rig.broker.capabilities == frozenset(Capability) - {Capability.TAGS}
