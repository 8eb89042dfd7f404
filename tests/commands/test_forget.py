"""`delayq forget` leaves nothing of a message, says what it removed, and leaves what runs."""

import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.management.base import CommandError
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, SettleAction
from django_delayq.models import ErrorMessage, FinishMessage, PayloadDifference, ReadyMessage, Tally
from tests.brokers.rig import settlement
from tests.commands.support import bury, claim, delayq, send
from tests.databases import SiteTables

TABLES = (ReadyMessage, FinishMessage, ErrorMessage)


@pytest.fixture
def stored(settings: Settings, sqlite_database: str) -> Backend:
    """A store, in whose database Django's log is too."""
    alias: dict[str, Any] = {"BROKER": "django_delayq.brokers.database.DatabaseBroker", "DATABASE": sqlite_database}
    settings.DELAYQ = {"default": alias | {"OPTIONS": {"unknown_keys": "allow"}}}
    settings.DATABASE_ROUTERS = [SiteTables(sqlite_database)]
    return get_backend()


def ids_left(database: str) -> list[str]:
    return sorted(id for table in TABLES for id in table.objects.using(database).values_list("message_id", flat=True))


def log(object_id: str, text: str, message: str) -> LogEntry:
    """An entry of Django's log about failed messages."""
    user, _ = User.objects.get_or_create(username="root")
    about = ContentType.objects.get_for_model(ErrorMessage)
    return LogEntry.objects.create(
        user=user, content_type=about, object_id=object_id, object_repr=text, action_flag=2, change_message=message
    )


def test_nothing_is_left_of_a_message_in_any_table_or_in_the_log(stored: Backend, sqlite_database: str) -> None:
    send(stored, "a", "other")
    finished = {each.id: each for each in claim(stored, 2)}
    stored.queue.apply([settlement(each, SettleAction.FINISH) for each in finished.values()])
    bury(stored, "a")
    send(stored, "a")
    failed = ErrorMessage.objects.using(sqlite_database).get()
    changes = PayloadDifference.objects.using(sqlite_database)
    changes.create(
        alias="default", message_id="a", message_pk=failed.pk, at=0, who="root", mark="#1", difference='-"4111"'
    )
    log(str(failed.pk), "order.close a", "Payload changed and run again: #1\n-4111")
    log("", "key=order.close, search=a", "Run again: 2 messages, left 1")
    log("", "order.close other", "Run again: ValueError #1")
    told = delayq("forget", "--id", "a", "--no-input").splitlines()
    assert told == ["removed 3: 1 waiting, 1 finished, 1 failed", "erased from 2 entries of Django's log"]
    assert ids_left(sqlite_database) == ["other"]
    assert not changes.exists()
    first, second, third = LogEntry.objects.order_by("pk")
    assert first.object_repr.startswith("order.close #")
    assert first.change_message == "Payload changed and run again"
    assert second.object_repr.startswith("key=order.close, search=#")
    assert (third.object_repr, third.change_message) == ("order.close other", "Run again: ValueError #1")
    assert stored.queue.audit().differences == []
    assert delayq("forget", "--id", "a", "--no-input").startswith("removed 0: ")


def test_by_tag_and_what_runs_is_left_and_named(stored: Backend, sqlite_database: str) -> None:
    send(stored, "runs", tag="customer:7")
    claim(stored)
    send(stored, "a", "b", tag="customer:7")
    send(stored, "other")
    with pytest.raises(CommandError, match=r"Not removed, because they run: 'runs'\. Run this again"):
        delayq("forget", "--tag", "customer:7", "--no-input")
    assert ids_left(sqlite_database) == ["other", "runs"]
    assert dict(Tally.objects.using(sqlite_database).values_list("name", "count")) == {"purged": 2}


def test_the_files_of_a_lake_that_hold_them_are_listed(stored: Backend, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for name, ids in (("finish/one", ["a", "x", "a"]), ("finish/two", ["x"]), ("error/three", ["b"])):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        tags = ["customer:7" if id == "b" else None for id in ids]
        parquet.write_table(pa.table({"id": ids, "tag": pa.array(tags, pa.string()), "pk": [1] * len(ids)}), path)
    told = delayq("forget", "--id", "a", "--tag", "customer:7", "--lake", str(tmp_path), "--no-input").splitlines()
    assert told[2:] == [
        f"in the lake: {tmp_path}/error/three.parquet (1 row)",
        f"in the lake: {tmp_path}/finish/one.parquet (2 rows)",
    ]
    (tmp_path / "error/three.parquet").write_bytes(b"no Parquet")
    with pytest.raises(CommandError, match=r"three\.parquet can't be read"):
        delayq("forget", "--id", "a", "--lake", str(tmp_path), "--no-input")
    with pytest.raises(CommandError, match="no such place"):
        delayq("forget", "--id", "a", "--lake", str(tmp_path / "no such place"), "--no-input")


def test_without_arrow_a_lake_is_refused_before_anything_goes(
    stored: Backend, sqlite_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(stored, "a")
    monkeypatch.setitem(sys.modules, "django_delayq.spark.forget", None)
    with pytest.raises(CommandError, match=r"--lake needs Arrow .*: pip install pyarrow\. Nothing was removed"):
        delayq("forget", "--id", "a", "--lake", "lake", "--no-input")
    assert ids_left(sqlite_database) == ["a"]


@pytest.mark.django_db
def test_without_a_store_messages_are_found_by_their_ids(carrying: Backend) -> None:
    bury(carrying, "dead")
    send(carrying, "runs")
    claim(carrying)
    send(carrying, "a", "b")
    with pytest.raises(CommandError, match="because they run: 'runs'"):
        delayq("forget", "--id", "a", "dead", "--id", "runs", "--no-input")
    assert carrying.queue.get("a") is None
    assert carrying.queue.get("dead") is None
    assert carrying.queue.get("b") is not None
    with pytest.raises(CommandError, match="not found by a tag; give --id"):
        delayq("forget", "--tag", "customer:7", "--no-input")


def test_without_a_choice_or_a_yes_nothing_goes(
    stored: Backend, sqlite_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(stored, "a")
    with pytest.raises(CommandError, match="Say what to forget") as raised:
        delayq("forget")
    assert raised.value.returncode == 2
    monkeypatch.setattr("builtins.input", lambda question: "no")
    with pytest.raises(CommandError, match="Nothing was done"):
        delayq("forget", "--id", "a")
    assert ids_left(sqlite_database) == ["a"]
