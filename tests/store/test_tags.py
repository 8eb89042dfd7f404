"""A message has up to ten tags: it is found by each of them, wherever its row is, and they end with it."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_delayq import (
    Send,
    cancel_delay_messages,
    get_delay_message,
    list_delay_messages,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.brokers.base import SettleAction
from django_delayq.models import FinishMessage, ReadyMessage, TagRow
from django_delayq.store import DatabaseBackend
from django_delayq.store.forget import forget
from django_delayq.store.operations import prune_errors, prune_finished, remove
from tests.brokers.rig import settlement
from tests.races import while_another_did
from tests.store.support import claim

BOTH = "order:17", "customer:3"
DAY_MS = 86_400_000


def _tags(database: str) -> set[str]:
    return set(TagRow.objects.using(database).values_list("tag", flat=True))


def _ids(tag: str) -> list[str]:
    return sorted(info.id for info in list_delay_messages(tag=tag))


def test_a_message_is_found_by_each_of_its_tags(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h", tag=BOTH)
    send_delay_message("k", 1, id="b", delay="1h", tag="customer:3")
    send_delay_message("k", 1, id="c", delay="1h", tag=["order:18", "customer:4"])
    assert (_ids("order:17"), _ids("customer:3"), _ids("customer:4")) == (["a"], ["a", "b"], ["c"])
    assert reschedule_delay_messages(tag="customer:3", delay="2h") == 2
    assert cancel_delay_messages(tag="customer:3") == 2
    assert [row.message_id for row in ReadyMessage.objects.using(database)] == ["c"]
    assert _ids("customer:3") == ["a", "b"]


def test_a_message_has_its_tags_wherever_it_is_read(broker: DatabaseBackend) -> None:
    tags = "order:17", "z", "customer:3", "a"
    send_delay_message("k", 1, id="a", tag=tags)
    read: list[Callable[[], Any]] = [
        lambda: get_delay_message("a"),
        lambda: next(list_delay_messages(tag="z")),
        lambda: next(list_delay_messages(key="k")),
    ]
    for action in (SettleAction.RETRY, SettleAction.BURY, SettleAction.FINISH):
        (claimed,) = claim(broker)
        assert claimed.header is not None
        assert (claimed.header.tag, claimed.header.more_tags) == (tags[0], tags[1:])
        assert [each().tags for each in read] == [tags] * 3
        broker.queue.apply([settlement(claimed, action)])
        assert [each().tags for each in read] == [tags] * 3
        broker.queue.rescue(["a"])


def test_a_bulk_send_gives_each_message_its_own_tags(broker: DatabaseBackend) -> None:
    sent = [(), "one", ("two", "three"), ("four", "two", "six"), ()]
    send_delay_messages([Send("k", n, id=str(n), delay="1h", tag=tag) for n, tag in enumerate(sent)])
    infos = [get_delay_message(str(n)) for n in range(len(sent))]
    assert [info.tags for info in infos if info] == [(), ("one",), *sent[2:]]
    assert _ids("two") == ["2", "3"]


def test_a_tag_that_is_given_twice_counts_once(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", tag=["a", "b", "a", "b"])
    send_delay_message("k", 1, id="b", tag=["c", "c"])
    found = {info.id: info.tags for info in list_delay_messages()}
    assert found == {"a": ("a", "b"), "b": ("c",)}
    assert _tags(database) == {"b"}


def test_a_send_with_more_tags_is_all_or_nothing(broker: DatabaseBackend, database: str) -> None:
    with transaction.atomic(using=database):
        send_delay_message("k", 1, tag=BOTH)
        transaction.set_rollback(True, using=database)
    assert not _tags(database)

    def fail(execute: Any, sql: str, *rest: Any) -> Any:
        if "INTO delayq_tag" in sql:
            raise ZeroDivisionError
        return execute(sql, *rest)

    with connections[database].execute_wrapper(fail), pytest.raises(ZeroDivisionError):
        send_delay_message("k", 1, tag=BOTH)
    assert not ReadyMessage.objects.using(database).exists()


@pytest.mark.parametrize(("on_conflict", "tags"), [("replace", ("b", "c")), ("keep", BOTH), ("latest", BOTH)])
def test_only_a_message_that_replaces_another_brings_its_tags(
    broker: DatabaseBackend, database: str, on_conflict: Any, tags: tuple[str, ...]
) -> None:
    send_delay_message("k", 1, id="a", delay="1h", tag=BOTH)
    send_delay_message("k", 1, id="a", delay="2h", tag=("b", "c"), on_conflict=on_conflict)
    info = get_delay_message("a")
    assert info is not None
    assert info.tags == tags
    assert _tags(database) == {*tags[1:]}
    send_delay_message("k", 1, id="a", delay="2h", tag="b", on_conflict="replace")
    assert not _tags(database)
    assert not _ids("customer:3")


def test_a_message_that_is_refused_brings_no_tags(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    broker.queue.apply([settlement(one, SettleAction.FINISH) for one in claim(broker)])
    assert send_delay_message("k", 1, id="a", tag=BOTH, id_scope="all").ended
    assert not _tags(database)


@pytest.mark.parametrize("way", ["purge", "purge failed", "prune", "prune failed", "archive", "forget", "forget by id"])
def test_tags_end_with_their_message(broker: DatabaseBackend, database: str, way: str) -> None:
    for id in ("a", "b"):
        send_delay_message("k", 1, id=id, delay="1h" if way == "purge" else 0, tag=(id, f"of {id}"))
    if way != "purge":
        ended = SettleAction.BURY if "failed" in way else SettleAction.FINISH
        held = claim(broker)
        broker.queue.apply([settlement(one, ended) for one in held if one.id == "a"])
        broker.queue.apply([settlement(one, SettleAction.RELEASE) for one in held if one.id == "b"])
    assert _tags(database) == {"of a", "of b"}
    later_ms = broker.database.now_ms() + DAY_MS
    ways: dict[str, Callable[[], object]] = {
        "purge": lambda: broker.queue.purge(["a"]),
        "purge failed": lambda: broker.queue.purge_failed(["a"]),
        "prune": lambda: prune_finished(broker.database, later_ms),
        "prune failed": lambda: prune_errors(broker.database, later_ms),
        "archive": lambda: remove(broker.database, "delayq_finish", [FinishMessage.objects.using(database).get().pk]),
        "forget": lambda: forget(broker.database, [], "of a"),
        "forget by id": lambda: forget(broker.database, ["a"]),
    }
    ways[way]()
    assert _tags(database) == {"of b"}
    assert get_delay_message("a") is None


def test_what_removes_messages_without_more_tags_writes_no_tags(broker: DatabaseBackend, database: str) -> None:
    for n in range(3):
        send_delay_message("k", 1, id=str(n), delay="1h", tag="t")
    with CaptureQueriesContext(connections[database]) as captured:
        broker.queue.purge(["0", "1", "2"])
    about_tags = [each["sql"] for each in captured if "delayq_tag" in each["sql"]]
    assert len(about_tags) == 1
    assert about_tags[0].startswith("SELECT")


def test_a_send_with_one_tag_asks_for_no_others(broker: DatabaseBackend, database: str) -> None:
    with CaptureQueriesContext(connections[database]) as captured:
        send_delay_message("k", 1, id="a", tag="t", delay="1h")
        send_delay_message("k", 1, id="a", tag="u", delay="2h", on_conflict="latest")
    assert not [each["sql"] for each in captured if "delayq_tag" in each["sql"]]


def test_a_claim_without_tags_asks_for_none(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    with CaptureQueriesContext(connections[database]) as captured:
        claim(broker)
    assert not [each["sql"] for each in captured if "delayq_tag" in each["sql"]]


def test_a_tag_without_its_message_leads_nowhere(broker: DatabaseBackend, database: str) -> None:
    """An earlier version removes messages, and leaves their tags."""
    send_delay_message("k", 1, id="a", delay="1h", tag=BOTH)
    send_delay_message("k", 1, id="b", delay="1h", tag=("x", "customer:3"))
    ReadyMessage.objects.using(database).filter(message_id="a").delete()
    assert _ids("customer:3") == ["b"]
    assert cancel_delay_messages(tag="customer:3") == 1
    FinishMessage.objects.using(database).update(ended_at=F("ended_at"))
    forget(broker.database, [], "customer:3")
    assert not TagRow.objects.using(database).exists()


def test_the_tags_of_another_alias_are_not_found(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h", tag=BOTH)
    for model in (ReadyMessage, TagRow):
        model._default_manager.using(database).update(alias="other")
    assert _ids("customer:3") == []
    assert cancel_delay_messages(tag="customer:3") == 0
    forget(broker.database, [], "customer:3")
    assert ReadyMessage.objects.using(database).exists()
    assert TagRow.objects.using(database).exists()


def _replace(*tags: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h", tag=tags, on_conflict="replace")


@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
@pytest.mark.parametrize("tag", BOTH)
def test_a_message_that_is_being_replaced_is_not_cancelled_by_a_tag_of_before(
    broker: DatabaseBackend, database: str, tag: str
) -> None:
    _replace(*BOTH)
    cancelled = while_another_did(
        database, lambda: _replace("order:18", "customer:4"), lambda: cancel_delay_messages(tag=tag)
    )
    assert cancelled == 0


@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
def test_of_two_that_replace_a_message_the_last_alone_gives_it_tags(broker: DatabaseBackend, database: str) -> None:
    _replace(*BOTH)
    while_another_did(database, lambda: _replace("a", "b", "c"), lambda: _replace("a", "d", "c"))
    info = get_delay_message("a")
    assert info is not None
    assert info.tags == ("a", "d", "c")


def test_commands_choose_by_any_tag(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a", delay="1h", tag=BOTH)
    out = io.StringIO()
    call_command("delayq", "cancel", "--tag", "customer:3", "--no-input", stdout=out)
    assert out.getvalue().strip() == "cancelled 1 of 1"
