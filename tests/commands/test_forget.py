"""`delayq forget` leaves nothing of a message, says what it removed, and leaves what runs."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.management.base import CommandError
from pytest_django import Settings

from django_delayq import Batch, send_delay_message
from django_delayq.admin.bulk import jobs
from django_delayq.admin.bulk.changes import KEY, Change
from django_delayq.admin.log import Chosen, chosen_in, hashed, log_rows, log_selection
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, SettleAction
from django_delayq.core.codec import decode_data
from django_delayq.models import BatchRow, ErrorMessage, FinishMessage, PayloadDifference, ReadyMessage, Tally
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


def choose(chosen: Chosen, message: str) -> LogEntry:
    """An entry of Django's log about all failed messages that match."""
    user, _ = User.objects.get_or_create(username="root")
    return log_selection(user.pk, ErrorMessage, chosen, message)


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
    log(str(failed.pk), "order.close a", "Payload changed and rescued: #1\n-4111")
    choose(Chosen("default", {"key": "order.close", "search": "a"}), "Rescue: 2 messages, left 1")
    log("7", "order.close other", "Rescued: ValueError #1")
    told = delayq("forget", "--id", "a", "--no-input").splitlines()
    assert told == ["removed 3: 1 waiting, 1 finished, 1 failed", "erased from 2 entries of Django's log"]
    assert ids_left(sqlite_database) == ["other"]
    assert not changes.exists()
    first, second, third = LogEntry.objects.order_by("pk")
    assert first.object_repr.startswith("order.close #")
    assert first.change_message == "Payload changed and rescued"
    assert second.object_repr.startswith("key=order.close, search=#")
    assert (third.object_repr, third.change_message) == ("order.close other", "Rescued: ValueError #1")
    assert stored.queue.audit().differences == []
    assert delayq("forget", "--id", "a", "--no-input").startswith("removed 0: ")


def test_only_what_names_the_message_is_erased_from_the_log(stored: Backend) -> None:
    many = [f"order:{number}" for number in range(60)]
    odd = "7, a=b c"
    living = [
        log("other:5", "order.close 7", "Rescued: ValueError #1"),
        choose(Chosen("other", {"search": "7"}), "Rescue: 7 messages"),
        choose(Chosen("default", {"pk": "7", "failures": "7", "key": "7"}), "Export as CSV: 7, with payloads"),
        log("8", "order.close order 7", "Rescued: ValueError #1"),
    ]
    before = [(each.object_repr, each.change_message) for each in living]
    named = choose(Chosen("default", ids=[*many, odd, "7"]), "rescue: 62 of 62 messages")
    searched = choose(Chosen("default", {"search": odd}), "Rescue: 7 messages")
    starts = choose(Chosen("default", {"q": "7*", "tag__exact": "customer 7"}), "Export as CSV: 7, with payloads")
    told = delayq("forget", "--id", "7", odd, "--tag", "customer 7", "--no-input")
    assert "erased from 3 entries" in told
    for entry, was in zip(living, before, strict=True):
        entry.refresh_from_db()
        assert (entry.object_repr, entry.change_message) == was
    for entry, ids in ((named, 62), (searched, 1), (starts, 2)):
        said = entry.change_message.splitlines()[0]
        entry.refresh_from_db()
        left = chosen_in(entry)
        assert left is not None
        assert not {"7", "7*", odd, "customer 7"} & {*left.ids, *left.filter.values()}
        assert len(left.ids) + len(left.filter) == ids
        assert entry.change_message.splitlines()[0] == said
        assert entry.object_repr == left.words()[:200]


@pytest.mark.parametrize(("key", "id"), [("send the sms", "order 7, of=a"), ("k" * 150, "i" * 150), ("k", "a\u202eb")])
def test_the_id_of_one_message_is_found_in_its_entry_whatever_is_in_it(
    stored: Backend, sqlite_database: str, key: str, id: str
) -> None:
    user = User.objects.create(username="root")
    send_delay_message(key, id="a", delay=0)
    ReadyMessage.objects.using(sqlite_database).update(message_id=id)  # earlier versions took any
    log_rows(user.pk, list(ReadyMessage.objects.using(sqlite_database).all()), "Run now")
    before = LogEntry.objects.get().object_repr
    assert len(before) <= 200
    delayq("forget", "--id", id, "--no-input")
    assert re.fullmatch(".* #[0-9a-f]{16}", LogEntry.objects.get().object_repr)


def test_messages_of_jobs_have_the_search_no_more(stored: Backend, registry: None, sqlite_database: str) -> None:
    jobs.register("default")

    def send_job(name: str, search: str) -> None:
        selection = jobs.Selection("default", "errormessage", 0, 9, {}, search)
        jobs._send(jobs.Job(name, "1", selection, Change("rescue"), 1))

    def searches() -> dict[str, str]:
        rows = (row for table in TABLES for row in table.objects.using(sqlite_database).filter(key=KEY))
        found = {row.message_id: decode_data(row.data.encode(), jobs.Job) for row in rows}
        assert all(jobs._is_signed(job, id) for id, job in found.items())
        return {job.name: job.selection.search for job in found.values()}

    for name, search in {"1": "data.card=4111", "2": "a", "3": "data.card=4222", "4": "a*", "5": "other"}.items():
        send_job(name, search)
        if name in "12":
            while not (leased := claim(stored, key=KEY)):  # it is due within a millisecond
                stored.queue.wait(0.001)
            stored.queue.apply([settlement(leased[0], SettleAction.FINISH)])
    assert "erased from 3 messages of the admin's jobs" in delayq("forget", "--id", "a", "--no-input")
    left = searches()
    assert left["1"] == f"data.card={hashed('4111')}"
    assert left["2"] == hashed("a")
    assert left["3"] == "data.card=4222"  # it still looks for it
    assert left["4"] == hashed("a*")
    assert left["5"] == "other"
    assert "jobs" not in delayq("forget", "--id", "a", "--no-input")


def test_by_tag_and_what_runs_is_left_and_named(stored: Backend, sqlite_database: str) -> None:
    send(stored, "runs", tag="customer:7")
    claim(stored)
    send(stored, "a", "b", tag="customer:7")
    send(stored, "other")
    with pytest.raises(CommandError, match=r"Not removed, because they run: 'runs'\. Run this again"):
        delayq("forget", "--tag", "customer:7", "--no-input")
    assert ids_left(sqlite_database) == ["other", "runs"]
    assert dict(Tally.objects.using(sqlite_database).values_list("name", "count")) == {"purged": 2}


def test_the_data_of_a_batch_is_reached_once_its_members_are_cancelled(stored: Backend, sqlite_database: str) -> None:
    with Batch("done", data="secret", tag="customer:7") as batch:
        batch.send("order.close", delay="1h")
    delayq("forget", "--tag", "customer:7", "--no-input")
    assert BatchRow.objects.using(sqlite_database).exists()
    delayq("cancel", "--id-prefix", f"{batch.id}/", "--no-input")
    BatchRow.objects.using(sqlite_database).update(look_at=0)
    assert stored.store is not None
    stored.store.mend_follow_ups()
    assert delayq("forget", "--tag", "customer:7", "--no-input").startswith("removed 1: 1 waiting")
    assert not BatchRow.objects.using(sqlite_database).exists()
    assert ids_left(sqlite_database) == [f"{batch.id}/000000001"]


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
