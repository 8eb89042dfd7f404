"""With a store: the rows of the test's own transaction."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone
from pytest_django import Settings

from django_delayq import cancel_delay_messages
from django_delayq.brokers.base import SettleAction
from django_delayq.core.history import read
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.support.timestamps import from_ms
from django_delayq.testing import DelayqMixin, arun_due, run_due, sent_messages
from tests.testing.handlers import (
    fail,
    make_group,
    make_group_async,
    make_group_atomically,
    make_group_twice,
    note,
    seen,
    shared,
)

STORED: dict[str, Any] = {"default": {"STORE": {}}}
ALONE: dict[str, Any] = {"default": {"BROKER": "django_delayq.brokers.database.DatabaseBroker", "STORE": {}}}


@override_settings(DELAYQ=STORED)
class InATestCase(DelayqMixin, TestCase):
    def test_what_was_sent_is_seen_before_any_commit(self) -> None:
        note.send("b", delay="1d")
        with transaction.atomic():
            note.send("a", delay="1h")
            assert [info.data for info in sent_messages()] == ["a", "b"]
        assert [info.data for info in sent_messages("testing.note")] == ["a", "b"]

    def test_an_id_that_has_ended_is_refused_as_it_would_be_on_the_site(self) -> None:
        note.send("first", id="a", id_scope="all")
        self.assert_sent("testing.note", data="first")
        run_due()
        assert note.send("second", id="a", id_scope="all").ended
        self.assert_not_sent("testing.note")

    def test_shares_take_turns_among_what_is_due(self) -> None:
        for shop, count, age in (("large", 30, 3), ("small", 30, 2), ("tiny", 1, 1)):
            for number in range(count):
                shared.send({"shop": shop}, id=f"{shop} {number}", at=timezone.now() - timedelta(seconds=age))
        shared.send({"shop": "large"}, id="later", delay="1h")
        ran = [attempt.id for attempt in run_due(until="1h")]
        assert ran.index("tiny 0") <= 5
        assert ran[-1] == "later"
        for shop in "large", "small":
            own = [id for id in ran if id.startswith(shop)]
            assert own == [f"{shop} {number}" for number in range(30)], "each in its own order"
        before_the_last_large = ran[: ran.index("large 29")]
        assert 10 <= sum(id.startswith("small") for id in before_the_last_large) <= 20

    def test_a_message_without_a_share_runs_when_it_is_the_first(self) -> None:
        for number in range(3):
            shared.send({"shop": "large"}, id=f"large {number}")
        ReadyMessage.objects.filter(message_id="large 0").update(share=None)  # as one from before there were shares
        assert [attempt.id for attempt in run_due()] == [f"large {number}" for number in range(3)]

    def test_a_weight_that_fails_counts_as_one_as_at_a_worker(self) -> None:
        for shop in ("fails", "small", "fails", "small"):
            shared.send({"shop": shop}, id=f"{shop} {ReadyMessage.objects.count()}")
        with self.assertLogs("django_delayq", "ERROR") as logs:
            assert len(run_due()) == 4
        assert len(logs.records) == 1
        assert "share_weight failed for share 'fails'" in logs.output[0]

    def test_what_was_rolled_back_or_cancelled_is_not(self) -> None:
        with transaction.atomic():
            note.send("rolled back")
            transaction.set_rollback(True)
        note.send("cancelled", id="c")
        cancel_delay_messages("c")
        assert sent_messages() == []
        assert run_due(until="1d") == []

    def test_it_runs_and_its_handler_sees_the_transaction(self) -> None:
        Group.objects.create(name="there")
        make_group.send("there", delay="1d")
        make_group.send("new", delay="1d")
        make_group_async.send("async", delay="1d")
        run_due(until="1d")
        assert set(Group.objects.values_list("name", flat=True)) == {"there", "new", "async"}
        assert FinishMessage.objects.count() == 3

    def test_an_atomic_handler_that_fails_is_undone_alone(self) -> None:
        Group.objects.create(name="there")
        make_group_atomically.send("fail", delay="1d")
        attempts = run_due(until="1d", errors="keep")
        assert [attempt.ended for attempt in attempts] == [SettleAction.RETRY]
        assert Group.objects.get().name == "there"
        assert [attempt.ended for attempt in run_due(until="1m")] == [SettleAction.FINISH]
        assert Group.objects.filter(name="fail").exists()

    def test_everything_twice_but_what_ends_in_its_own_transaction(self) -> None:
        make_group.send("g")
        make_group_atomically.send("once")
        assert sorted(attempt.key for attempt in run_due(deliveries=2)) == [
            "testing.atomic",
            "testing.group",
            "testing.group",
        ]

    def test_a_handler_that_a_database_error_ends_spoils_no_transaction(self) -> None:
        make_group_twice.send("g")
        attempts = run_due(until="1m", errors="keep")
        assert [attempt.ended for attempt in attempts] == [SettleAction.RETRY, SettleAction.FINISH]
        assert Group.objects.get().name == "g"

    async def test_async_handlers_see_it_too(self) -> None:
        await make_group_async.asend("async", delay="1d")
        await arun_due(until="1d")
        assert await Group.objects.acount() == 1


@override_settings(DELAYQ=STORED)
class InATransactionTestCase(DelayqMixin, TransactionTestCase):
    def test_what_is_committed_runs_and_what_is_rolled_back_does_not(self) -> None:
        with transaction.atomic():
            make_group.send("g", delay="1d")
        with transaction.atomic():
            make_group.send("rolled back", delay="1d")
            transaction.set_rollback(True)
        assert len(run_due(until="1d")) == 1
        assert Group.objects.get().name == "g"

    def test_an_atomic_handler_that_fails_is_undone(self) -> None:
        make_group_atomically.send("fail")
        run_due(errors="keep")
        assert not Group.objects.exists()


@override_settings(DELAYQ=ALONE)
class InATestCaseOfTheDatabaseAlone(InATestCase):
    pass


@override_settings(DELAYQ=ALONE)
class InATransactionTestCaseOfTheDatabaseAlone(InATransactionTestCase):
    pass


@override_settings(DELAYQ={"default": {"STORE": {}, "DATABASE": "other"}})
class OnAnotherDatabase(DelayqMixin, TestCase):
    databases = {"other"}  # noqa: RUF012

    def test_its_rows_are_there(self) -> None:
        note.send("a", delay="1d")
        assert ReadyMessage.objects.using("other").count() == 1
        assert len(run_due(until="1d")) == 1
        assert FinishMessage.objects.using("other").count() == 1


@pytest.mark.django_db
class TestRows:
    @pytest.fixture(autouse=True, params=[STORED, ALONE], ids=["stored", "alone"])
    def _stored(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        settings.DELAYQ = request.param

    @pytest.mark.usefixtures("_no_library")
    def test_all_that_was_written_gets_older(self, run_due) -> None:  # type: ignore[no-untyped-def]
        fail.send("x")
        note.send("done")
        note.send("later", delay="30d", expires="1h")
        before = {row.message_id: row for row in ReadyMessage.objects.all()}
        run_due(until="7d", errors="keep")
        (later,) = ReadyMessage.objects.all()
        sent = before[later.message_id]
        for name in ("due_at", "scheduled_at", "sent_at", "expires_at"):
            aged = getattr(sent, name) - getattr(later, name)
            assert timedelta(days=7) <= aged < timedelta(days=7, seconds=10)
        week_ago = timezone.now() - timedelta(days=6, hours=23)
        assert FinishMessage.objects.get().ended_at < week_ago
        buried = ErrorMessage.objects.get()
        assert buried.sent_at < week_ago
        (failed, *_) = read(buried.history)
        assert from_ms(failed.started or 0) <= from_ms(failed.ended) < week_ago

    def test_the_real_time_of_a_handler_is_its_due_time(self, run_due) -> None:  # type: ignore[no-untyped-def]
        note.send("a", delay="3d", expires="1h")
        run_due(until="3d")
        (message,) = seen
        assert timedelta(0) <= timezone.now() - message.due_at < timedelta(minutes=1)
        assert timedelta(days=3) <= message.due_at - message.sent_at < timedelta(days=3, minutes=1)
