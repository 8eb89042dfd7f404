"""The audit of a Redis on which messages move meanwhile."""

from django_delayq.brokers.base import Audit, SettleAction
from django_delayq.brokers.redis.client import Client, Operation
from django_delayq.brokers.redis.queries import audit
from django_delayq.brokers.redis.shards import Keys
from tests.brokers.rig import Rig


def audit_while_it_comes_and_goes(rig: Rig) -> Operation[Audit]:
    """The message that is due waits only while the script looks, and runs whenever the sets are listed."""
    operation = audit(Keys("delayq"))
    calls = next(operation)
    held = rig.claim_one()
    while True:
        is_script = any(call.name == "audit.lua" for call in calls)
        if is_script:
            assert rig.settle(held, SettleAction.RELEASE)
        replies = yield calls
        if is_script:
            held = rig.claim_one()
        try:
            calls = operation.send(replies)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def test_a_set_that_is_gone_whenever_its_name_is_asked_for_is_counted(rig: Rig, links: Client) -> None:
    rig.send("a")
    rig.advance(0)
    found = links.run(audit_while_it_comes_and_goes(rig))
    assert (found.differences, found.places["ready"]) == ([], 1)


def audit_after_a_release(rig: Rig) -> Operation[Audit]:
    """The message that runs is released after it was read among those that run, and before it is looked at there."""
    operation = audit(Keys("delayq"))
    held = rig.claim_one()
    calls = next(operation)
    is_released = False
    while True:
        looks_there = any(call.name == "misplaced.lua" and call.keys[-1] == Keys("delayq").running for call in calls)
        if looks_there and not is_released:
            is_released = rig.settle(held, SettleAction.RELEASE)
        try:
            calls = operation.send((yield calls))
        except StopIteration as end:
            assert is_released
            return end.value  # type: ignore[no-any-return]


def test_a_message_that_moves_on_while_its_page_is_read_is_no_difference(rig: Rig, links: Client) -> None:
    rig.send("a")
    rig.advance(0)
    assert links.run(audit_after_a_release(rig)).differences == []
