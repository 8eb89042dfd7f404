"""What a broker says it can do, it does; what it says it can't, it refuses."""

from collections.abc import Callable

import pytest

from django_delayq.brokers.base import Capability
from django_delayq.errors import Unsupported
from tests.brokers.rig import Rig

USES: dict[Capability, Callable[[Rig], object]] = {
    Capability.CONFLICTS: lambda rig: rig.broker.get("a"),
    Capability.CANCEL: lambda rig: rig.broker.cancel(["a"]),
    Capability.RESCHEDULE: lambda rig: rig.broker.reschedule(["a"]),
    Capability.PEEK: lambda rig: rig.broker.peek("q", 1),
    Capability.COUNTS: lambda rig: (rig.broker.counts(), rig.broker.audit()),
}


@pytest.mark.parametrize("capability", USES)
def test_a_capability_is_what_its_verbs_do(rig: Rig, capability: Capability) -> None:
    rig.send("a")
    if capability in rig.broker.capabilities:
        assert USES[capability](rig)
    else:
        with pytest.raises(Unsupported):
            USES[capability](rig)


def test_every_capability_but_the_clock_has_a_verb() -> None:
    assert set(USES) == set(Capability) - {Capability.CLOCK}


def test_memory_and_redis_can_do_everything(rig: Rig) -> None:
    assert rig.broker.capabilities == frozenset(Capability)
