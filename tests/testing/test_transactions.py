"""Inside the transaction of a TestCase, whose commit never comes."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from django_delayq import cancel_delay_messages
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import SettleAction
from django_delayq.core.message import OnConflict, State
from django_delayq.testing import Attempt, DelayqMixin, VirtualTimeBroker, arun_due, run_due, sent_messages
from tests.testing.handlers import leave_open, leave_open_async, make_group, make_group_async, note, seen

ON_CONFLICT: dict[OnConflict, tuple[str, int]] = {
    "keep": ("0", 2),
    "replace": ("2", 3),
    "earliest": ("0", 1),
    "latest": ("0", 3),
}
"""What is left of sends of 0, 1 and 2 in 2, 1 and 3 hours: the data, and in how many hours."""


def _hours_left(id: str) -> tuple[str, int]:
    (info,) = [info for info in sent_messages() if info.id == id]
    return info.data, round((info.due_at - datetime.now(UTC)) / timedelta(hours=1))


def _see_what_is_left_open_fail(run: Callable[..., list[Attempt]]) -> None:
    Group.objects.create(name="there")
    for handler in (leave_open, leave_open_async):
        handler.send("left open")
        (attempt,) = run(errors="keep")
        assert attempt.ended is SettleAction.BURY
        assert attempt.error.startswith("TransactionManagementError: It left a transaction open on database 'default'")
    make_group.send("after")
    run()
    assert set(Group.objects.values_list("name", flat=True)) == {"there", "after"}


class InATestCase(DelayqMixin, TestCase):
    def test_what_waits_for_the_commit_is_seen(self) -> None:
        make_group.send("g", id="a", delay="1d", tag="t")
        with transaction.atomic():
            note.send("inner", delay="1h")
            assert [info.data for info in sent_messages()] == ["inner", "g"]
        (info,) = sent_messages("testing.group")
        assert (info.id, info.state, info.tag) == ("a", State.PENDING, "t")
        assert round((info.due_at - info.sent_at).total_seconds()) == 86_400
        assert get_backend().queue.counts().totals["sent"] == 0

    def test_what_was_rolled_back_or_cancelled_is_not(self) -> None:
        with transaction.atomic():
            note.send("rolled back")
            transaction.set_rollback(True)
        note.send("cancelled", id="c")
        cancel_delay_messages("c")
        assert sent_messages() == []
        assert run_due(until="1d") == []

    def test_of_sends_with_one_id_it_is_what_a_commit_would_leave(self) -> None:
        for on_conflict, left in ON_CONFLICT.items():
            with self.subTest(on_conflict):
                for number, delay in enumerate(["2h", "1h", "3h"]):
                    note.send(str(number), id=on_conflict, delay=delay, on_conflict=on_conflict)
                assert _hours_left(on_conflict) == left

    def test_of_sends_with_an_id_at_the_broker_it_is_what_a_commit_would_leave(self) -> None:
        for on_conflict, left in ON_CONFLICT.items():
            with self.subTest(on_conflict):
                note.send("0", id=on_conflict, delay="2h", on_commit=False)
                for number, delay in enumerate(["1h", "3h"], start=1):
                    note.send(str(number), id=on_conflict, delay=delay, on_conflict=on_conflict)
                assert _hours_left(on_conflict) == left

    def test_it_runs_and_its_handler_sees_the_transaction(self) -> None:
        Group.objects.create(name="there")
        make_group.send("there", delay="1d")
        make_group.send("new", delay="1d")
        make_group_async.send("async", delay="1d")
        run_due(until="1d")
        assert set(Group.objects.values_list("name", flat=True)) == {"there", "new", "async"}

    def test_an_idempotent_handler_does_not_mind_a_second_delivery(self) -> None:
        make_group.send("g")
        assert len(run_due(deliveries=2)) == 2
        assert Group.objects.count() == 1

    def test_inside_the_atomic_of_the_code_under_test_it_goes_on_waiting(self) -> None:
        with transaction.atomic():
            make_group.send("g")
            assert run_due(until="1d") == []
        assert len(run_due()) == 1

    def test_captured_callbacks_do_not_send_it_twice(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            make_group.send("g")
        assert len(run_due(until="1d")) == 1
        with self.captureOnCommitCallbacks(execute=True):
            make_group.send("h")
            run_due()
        assert run_due(until="1d") == []

    async def test_async_handlers_see_it_too(self) -> None:
        await make_group_async.asend("async", delay="1d")
        await arun_due(until="1d")
        assert await Group.objects.acount() == 1

    def test_an_atomic_that_a_handler_does_not_leave_fails_it_and_is_undone_alone(self) -> None:
        _see_what_is_left_open_fail(run_due)

    async def test_async_it_does_so_too(self) -> None:
        await sync_to_async(_see_what_is_left_open_fail)(async_to_sync(arun_due))


class InATransactionTestCase(DelayqMixin, TransactionTestCase):
    def test_sends_are_sent_and_rolled_back_for_real(self) -> None:
        with transaction.atomic():
            make_group.send("g", delay="1d")
        assert get_backend().queue.counts().totals["sent"] == 1
        run_due(until="1d")
        assert Group.objects.count() == 1

    def test_an_atomic_that_a_handler_does_not_leave_fails_it_and_is_undone(self) -> None:
        _see_what_is_left_open_fail(run_due)
        assert not connection.in_atomic_block


class TestMixin:
    def test_each_test_has_an_empty_broker_with_virtual_time(self) -> None:
        class Case(DelayqMixin, TestCase):
            def runTest(self) -> None:  # noqa: N802
                brokers.append(get_backend())

        brokers: list[object] = []
        for _ in range(2):
            case = Case()
            case.setUp()
            case.runTest()
            case.doCleanups()
        assert brokers[0] is not brokers[1]
        assert all(isinstance(broker, VirtualTimeBroker) for broker in brokers)


@pytest.mark.django_db
def test_the_pytest_fixtures_do_the_same(run_due, sent_messages) -> None:  # type: ignore[no-untyped-def]
    note.send("a", delay="3d")
    assert [info.data for info in sent_messages()] == ["a"]
    assert len(run_due(until="3d")) == 1
    assert [message.data for message in seen] == ["a"]
