"""`delayq peek` and `delayq errors` show messages and change nothing."""

import pytest
from django.core.management.base import CommandError

from django_delayq.brokers.base import Backend
from tests.commands.support import bury, claim, delayq, delayq_json, send


def test_shows_the_next_messages_with_their_data_in_due_order(broker: Backend) -> None:
    send(broker, "late", delay_ms=60_000, body=b'{"order":2}')
    send(broker, "soon", delay_ms=30_000, body=b'{"order":1}')
    send(broker, "last", delay_ms=90_000)
    send(broker, "elsewhere", queue="mail")
    seen = delayq_json("peek", "default", "-n", "2")
    assert [(each["id"], each["data"], each["state"]) for each in seen] == [
        ("soon", {"order": 1}, "pending"),
        ("late", {"order": 2}, "pending"),
    ]
    assert '{"order":1}' in delayq("peek", "default")


def test_a_name_that_no_queue_has_is_refused(broker: Backend) -> None:
    for name, said in (("", "queue='' is empty"), ("a:b", "queue='a:b' contains a colon")):
        with pytest.raises(CommandError, match=said):
            delayq("peek", name)


def test_removes_nothing(broker: Backend) -> None:
    send(broker, "a", "b")
    delayq("peek", "default")
    assert {claimed.id for claimed in claim(broker, 2)} == {"a", "b"}


def test_an_id_that_reorders_text_is_shown_as_an_escape(broker: Backend) -> None:
    send(broker, "a\u202eb")
    assert r"a\u202eb" in delayq("peek", "default")


def test_data_that_is_no_json_is_shown_harmless_and_flagged(carrying: Backend) -> None:
    send(carrying, "a", body=b"\x1b[2J\xff")
    assert r"\x1b[2J\xff" in delayq("peek", "default")
    (seen,) = delayq_json("peek", "default")
    assert (seen["data"], seen["unreadable"]) == (None, True)


def test_long_data_is_cut_in_the_table_and_whole_in_json(broker: Backend) -> None:
    send(broker, "x" * 200, body=b'"' + b"y" * 5_000 + b'"')
    assert "(5002 bytes; --json shows all)" in delayq("peek", "default")
    assert delayq_json("peek", "default")[0]["data"] == "y" * 5_000


def test_an_empty_queue_is_told(broker: Backend) -> None:
    assert delayq("peek", "nowhere") == "Nothing waits in queue 'nowhere'.\n"


@pytest.mark.parametrize("count", ["0", "-1", "1001", "ten", "²", "9" * 5_000])
def test_a_count_that_is_none_is_named(count: str) -> None:
    with pytest.raises(CommandError, match="give 1 to 1000"):
        delayq("peek", "default", f"-n{count}")


def test_errors_shows_buried_messages_newest_first_with_the_reason(broker: Backend) -> None:
    bury(broker, "first", error="ValueError: no")
    bury(broker, "second", error="KeyError: 'x'")
    seen = delayq_json("errors")
    assert {(each["id"], each["error"]) for each in seen} == {("first", "ValueError: no"), ("second", "KeyError: 'x'")}
    assert [each["buried_ms"] for each in seen] == sorted((each["buried_ms"] for each in seen), reverse=True)
    assert "ValueError: no" in delayq("errors")
    assert len(delayq_json("errors", "-n", "1")) == 1


def test_no_errors_is_told(broker: Backend) -> None:
    assert delayq("errors") == "Nothing has failed.\n"


def test_the_json_of_a_message_has_one_shape_wherever_it_is(broker: Backend) -> None:
    bury(broker, "dead")
    send(broker, "held")
    claim(broker)
    send(broker, "waits")
    shape = [
        *("id", "state", "queue", "priority", "key", "tag", "tags", "trace_id", "share", "due_at", "due_ms"),
        *("sent_at", "sent_ms"),
        *("expires_at", "expires_ms", "at_most_once", "failures", "crashes"),
        *("merged", "again_at", "again_ms", "suspect", "holder"),
        *("lease_end_at", "lease_end_ms", "buried_at", "buried_ms"),
        *("progress", "cancel_asked_at", "cancel_asked_ms", "cancel_asked_by", "error", "detail"),
        *("version", "data", "unreadable"),
    ]
    assert [list(each) for each in delayq_json("peek", "default") + delayq_json("errors")] == [shape, shape]
    more = [
        "now_at",
        "now_ms",
        "parked",
        "pauses",
        "max_attempts",
        "happens_next",
        "schedule",
        "sequence",
        "batch",
        "facts",
    ]
    assert list(delayq_json("explain", "held")) == shape + more
