"""The end of a run for which a send is kept takes several calls: what others do between them is not passed over."""

from collections.abc import Callable

import pytest

from django_delayq.brokers.base import CancelRequest, Claimed, SettleAction, Transition
from django_delayq.brokers.redis.client import Client
from django_delayq.brokers.redis.settle import settle
from django_delayq.core import transitions
from django_delayq.core.message import State
from tests.brokers.rig import Rig, settlement
from tests.redis.test_lapses import KEYS, after_the_look

YIELDING = [SettleAction.RETRY, SettleAction.SNOOZE, SettleAction.RELEASE, SettleAction.CRASH, SettleAction.BURY]


def keep(rig: Rig, body: bytes) -> None:
    (sent,) = rig.send("a", body=body, on_conflict="replace", while_running="again")
    assert sent.kept


def started(rig: Rig) -> Claimed:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    keep(rig, b"2")
    return held


def end(links: Client, transition: Transition, meanwhile: Callable[[], object]) -> tuple[bool | CancelRequest, int]:
    """End a run, of which the first call finds a kept send, and say how many round trips it took."""
    trips: list[int] = []
    (answer,) = links.run(after_the_look(settle(KEYS, [transition]), meanwhile, trips))
    return answer, len(trips)


@pytest.mark.parametrize("verb", YIELDING)
@pytest.mark.parametrize("sends_later", [False, True])
def test_a_message_that_is_to_be_cancelled_meanwhile_is_left_to_that(
    rig: Rig, links: Client, verb: SettleAction, sends_later: bool
) -> None:
    held = started(rig)

    def cancel() -> None:
        assert rig.broker.queue.cancel(["a"], "alice") == [True]
        if sends_later:
            keep(rig, b"3")

    answer, trips = end(links, settlement(held, verb, error="no"), cancel)
    info = rig.get("a")
    assert (answer, trips) == (info.cancel_request, 3)
    assert (info.state, info.again_ms is not None) == (State.RUNNING, sends_later)
    assert info.cancel_request is not None
    assert rig.broker.queue.apply([transitions.cancel(held, info.cancel_request)]) == [True]
    assert [one.body for one in rig.claim()] == [b"3"] * sends_later


def test_a_finish_drops_what_a_cancel_meanwhile_drops(rig: Rig, links: Client) -> None:
    held = started(rig)
    finish = settlement(held, SettleAction.FINISH)
    assert end(links, finish, lambda: rig.broker.queue.cancel(["a"], "alice")) == (True, 3)
    rig.assert_counted("finished", 1)
    assert rig.look("a") is None


def test_a_finish_sends_what_comes_after_a_cancel_meanwhile(rig: Rig, links: Client) -> None:
    held = started(rig)

    def cancel() -> None:
        rig.broker.queue.cancel(["a"], "alice")
        keep(rig, b"3")

    assert end(links, settlement(held, SettleAction.FINISH), cancel) == (True, 2)
    assert rig.claim_one().body == b"3"
