"""Pruning: what ended long ago goes, in batches, and stays accounted for."""

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections, transaction
from django.db.models import F
from pytest_django import Settings

from django_delayq import cancel_delay_messages, send_delay_message
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, FinishMessage, PayloadDifference
from django_delayq.store import DatabaseBackend
from django_delayq.store.operations import prune_errors, prune_finished
from django_delayq.support.units import to_ms
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.maintenance import TableMaintenance
from tests.brokers.rig import settlement
from tests.store.support import LEASE_MS, claim

DAY_MS = 86_400_000
Answer = Callable[[str], None]


def _end(broker: DatabaseBackend, **verbs: SettleAction) -> None:
    """Send a message for each, and end it so."""
    for id in verbs:
        send_delay_message("k", 1, id=id)
    broker.queue.apply([settlement(one, verbs[one.id]) for one in claim(broker)])


def _age(database: str, days: int) -> None:
    for table in (FinishMessage, ErrorMessage):
        table._default_manager.using(database).update(ended_at=F("ended_at") - days * DAY_MS)


@pytest.fixture
def ended(broker: DatabaseBackend, database: str) -> None:
    """Ended 40 days ago: one finished, one cancelled, one buried. Today: one finished, one buried."""
    _end(broker, old=SettleAction.FINISH, failed=SettleAction.BURY)
    send_delay_message("k", 1, id="cancelled", delay="1h")
    cancel_delay_messages("cancelled")
    _age(database, 40)
    _end(broker, new=SettleAction.FINISH, failed_now=SettleAction.BURY)


def _run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("delayq", "prune", *arguments, stdout=out)
    return out.getvalue().strip()


def _left(database: str) -> set[str]:
    return {
        *FinishMessage.objects.using(database).values_list("message_id", flat=True),
        *ErrorMessage.objects.using(database).values_list("message_id", flat=True),
    }


@pytest.mark.usefixtures("ended")
def test_what_is_pruned_is_told_and_stays_accounted_for(broker: DatabaseBackend, database: str) -> None:
    before = broker.queue.counts().totals
    assert _run("--finished-before", "30d", "--no-input") == "pruned 2 finished or cancelled, 0 failed"
    assert _left(database) == {"new", "failed", "failed_now"}
    assert broker.queue.counts().totals == before
    assert _run("--errors-before", "30d", "--no-input") == "pruned 0 finished or cancelled, 1 failed"
    assert _left(database) == {"new", "failed_now"}
    totals = broker.queue.counts().totals
    assert (totals["sent"], totals["finished"], totals["cancelled"], totals["dropped"]) == (5, 2, 1, 1)
    assert broker.queue.audit().differences == []


@pytest.mark.usefixtures("ended")
def test_it_asks_first_and_tells_how_many(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    with pytest.raises(CommandError, match="Nothing was done"):
        _run("--finished-before", "30d", "--errors-before", "30d")
    assert "Prune 2 finished or cancelled messages and 1 failed for good?" in capsys.readouterr().out
    assert len(_left(database)) == 5


@pytest.mark.usefixtures("broker")
def test_a_wrong_command_line_says_what_to_write(settings: Settings) -> None:
    with pytest.raises(CommandError, match="Say what to prune: --finished-before 30d"):
        _run()
    with pytest.raises(CommandError, match="'soon' is no length of time; write it like"):
        _run("--finished-before", "soon")


def test_without_a_store_there_is_nothing_to_prune(settings: Settings, redis_delayq: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="'default' has no store"):
        _run("--finished-before", "30d", "--no-input")


def test_a_batch_is_bounded(broker: DatabaseBackend, database: str) -> None:
    _end(broker, a=SettleAction.FINISH)
    row = FinishMessage.objects.using(database).values().get()
    rows = [FinishMessage(**row | {"id": row["id"] + n}) for n in range(1, 1_500)]
    FinishMessage.objects.using(database).bulk_create(rows)
    _age(database, 1)
    now_ms = broker.database.now_ms()
    assert [prune_finished(broker.database, now_ms) for _ in range(3)] == [1_000, 500, 0]
    assert broker.queue.counts().totals["finished"] == 1_500


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_two_who_prune_do_not_wait_for_each_other_and_count_no_row_twice(
    broker: DatabaseBackend, database: str
) -> None:
    _end(broker, a=SettleAction.FINISH, b=SettleAction.BURY)
    _age(database, 1)
    pruned: list[int] = []

    def prune_too() -> None:
        pruned.append(prune_finished(broker.database, broker.database.now_ms()))
        connections.close_all()

    with transaction.atomic(using=database):
        assert prune_errors(broker.database, broker.database.now_ms()) == 1
        list(FinishMessage.objects.using(database).select_for_update())
        other = threading.Thread(target=prune_too)
        other.start()
        other.join()
    assert pruned == [0]
    assert prune_finished(broker.database, broker.database.now_ms()) == 1


@pytest.mark.usefixtures("ended")
def test_a_worker_prunes_by_itself_what_is_older_than_the_retention(
    broker: DatabaseBackend, database: str, stored_delayq: dict[str, Any]
) -> None:
    assert broker.queue.settings.retention == to_ms("30d", "default")
    maintenance = TableMaintenance(broker.queue, LEASE_MS, OutageLog())
    assert not maintenance.prune_due()
    assert _left(database) == {"new", "failed", "failed_now"}  # what failed is kept until an operator says otherwise
    _age(database, 40)
    assert not maintenance.prune_due()  # not before a minute is over
    assert "new" in _left(database)


@pytest.mark.usefixtures("ended")
def test_a_worker_prunes_what_failed_once_a_site_says_for_how_long_it_is_kept(
    database: str, stored_delayq: dict[str, Any], settings: Settings
) -> None:
    from django_delayq.brokers import get_backend

    settings.DELAYQ = {"default": stored_delayq | {"STORE": {"RETENTION": None, "FAILED_RETENTION": "30d"}}}
    broker = get_backend()
    assert isinstance(broker, DatabaseBackend)
    changes = PayloadDifference.objects.using(database)
    for row in ErrorMessage.objects.using(database):
        changes.create(
            alias="default", message_id=row.message_id, message_pk=row.pk, at=0, who="root", mark="#", difference="-"
        )
    assert not broker.queue.prune()
    assert {"failed", "failed_now"} - _left(database) == {"failed"}
    assert [each.message_id for each in changes.all()] == ["failed_now"]


@pytest.mark.usefixtures("ended")
def test_without_a_retention_all_is_kept(database: str, stored_delayq: dict[str, Any], settings: Settings) -> None:
    from django_delayq.brokers import get_backend

    settings.DELAYQ = {"default": stored_delayq | {"STORE": {"RETENTION": None}}}
    broker = get_backend()
    assert isinstance(broker, DatabaseBackend)
    assert not broker.queue.prune()
    assert len(_left(database)) == 5
