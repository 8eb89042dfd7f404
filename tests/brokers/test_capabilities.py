"""What a broker says it can do, it does; what it says it can't, it refuses."""

from collections.abc import Callable

import pytest

from django_delayq.brokers.base import Capability
from django_delayq.errors import Unsupported
from tests.brokers.conftest import WITHOUT_STORE, name
from tests.brokers.rig import Rig

USES: dict[Capability, Callable[[Rig], object]] = {
    Capability.CONFLICTS: lambda rig: rig.broker.get("a"),
    Capability.CANCEL: lambda rig: rig.broker.cancel(["a"]),
    Capability.RESCHEDULE: lambda rig: rig.broker.reschedule(["a"]),
    Capability.TAGS: lambda rig: rig.broker.tagged("t"),
    Capability.PEEK: lambda rig: rig.broker.peek("q", 1),
    Capability.COUNTS: lambda rig: (rig.broker.counts(), rig.broker.audit()),
}


@pytest.mark.parametrize("capability", USES)
def test_a_capability_is_what_its_verbs_do(rig: Rig, capability: Capability) -> None:
    rig.send("a", tag="t")
    if capability in rig.broker.capabilities:
        assert USES[capability](rig)
    else:
        with pytest.raises(Unsupported):
            USES[capability](rig)


def test_every_capability_that_is_a_verb_is_tried() -> None:
    assert set(USES) == set(Capability) - {Capability.CLOCK, Capability.MOVES}


@pytest.mark.parametrize("rig", WITHOUT_STORE, ids=name, indirect=True)
def test_memory_and_redis_can_do_all_that_needs_no_store(rig: Rig) -> None:
    assert rig.broker.capabilities == frozenset(Capability) - {Capability.TAGS}
