"""Rows of Arrow into messages, without Spark: how each column is read, and which rows are bad."""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from django_delayq import Message, delay_execute
from django_delayq.brokers.base import NewMessage
from django_delayq.conf import Alias, Options
from django_delayq.spark.write.options import WriteOptions
from django_delayq.spark.write.rows import Bad, new_messages_of
from django_delayq.support.validation import check_priority

ALIAS = Alias("default", options=Options(unknown_keys="allow", max_data=100))
OPTIONS = WriteOptions.of({"settings": "tests.settings", "job": "test"})


def read(columns: dict[str, Any], **options: Any) -> tuple[list[NewMessage], list[Bad]]:
    """Return what becomes of rows, each with a key and an id unless they are given."""
    count = len(next(iter(columns.values())))
    given = {"key": ["k"] * count, "id": [f"id{i}" for i in range(count)], **columns}
    return new_messages_of(pa.RecordBatch.from_pydict(given), replace(OPTIONS, **options), ALIAS)


def bodies(data: Any) -> list[bytes]:
    """The data of rows, as it is sent."""
    puts, bad = read({"data": data})
    assert bad == []
    return [put.body for put in puts]


def reasons(columns: dict[str, Any], **options: Any) -> list[str]:
    """Why rows are bad. None of them is good."""
    puts, bad = read(columns, **options)
    assert puts == []
    return [each.reason for each in bad]


def ids(columns: dict[str, Any], *of: str) -> list[str]:
    """The ids that are made of columns."""
    puts, bad = read(columns, id_columns=of)
    assert bad == []
    return [put.id for put in puts]


def test_a_due_time_is_rounded_up_to_the_millisecond() -> None:
    at = pa.array([1_000_000, 1_000_001, None], pa.timestamp("us", "America/New_York"))
    puts, _ = read({"due_at": at})
    assert [put.at_ms for put in puts] == [1000, 1001, None]


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [(["30m"], 1_800_000), ([90], 90_000), ([0.5], 500), ([timedelta(hours=1)], 3_600_000), ([None], 0)],
)
def test_a_delay_is_seconds_an_interval_or_text(delay: list[Any], milliseconds: int) -> None:
    puts, _ = read({"delay": pa.array(delay)})
    assert (puts[0].delay_ms, puts[0].at_ms) == (milliseconds, None)


def test_a_row_has_a_due_time_or_a_delay() -> None:
    (reason,) = reasons({"delay": ["1m"], "due_at": pa.array([1], pa.timestamp("us", "UTC"))})
    assert "leave one of them null" in reason


def test_data_is_a_struct_a_map_or_json() -> None:
    pairs = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    assert bodies(pairs) == [b'{"a":1}', b"null"]
    assert bodies([{"a": [1, None], "b": {"c": "d"}}]) == [b'{"a":[1,null],"b":{"c":"d"}}']
    assert bodies(['{ "a": 1 }', "7", None]) == [b'{"a":1}', b"7", b"null"]
    nested = pa.array([[{"m": [("a", 1)]}]], pa.list_(pa.struct({"m": pa.map_(pa.string(), pa.int64())})))
    assert bodies(nested) == [b'[{"m":{"a":1}}]']
    assert bodies([1, 2]) == [b"1", b"2"]


def test_rows_that_can_not_be_sent_are_told_apart_from_those_that_can() -> None:
    data = ['{"a": 1', "1", '"' + "x" * 200 + '"']
    puts, bad = read({"data": data})
    assert [put.id for put in puts] == ["id1"]
    assert [each.row for each in bad] == [0, 2]
    assert "is no JSON" in bad[0].reason
    assert "over the 100 of OPTIONS['max_data']" in bad[1].reason


def test_a_key_an_id_and_a_queue_are_checked_as_a_send_checks_them() -> None:
    assert "key=None" in reasons({"key": pa.array([None], pa.string())})[0]
    assert "id is null" in reasons({"id": pa.array([None], pa.string())})[0]
    assert "contains a colon" in reasons({"queue": ["a:b"]})[0]
    assert "id='delayq.x' is for messages of django-delayq" in reasons({"id": ["delayq.x"]})[0]
    assert "tag='delayq.x' is for messages of django-delayq" in reasons({"tag": ["delayq.x"]})[0]
    assert "over 100 years" in reasons({"due_at": pa.array([10**16], pa.timestamp("us", "UTC"))})[0]


def test_an_option_stands_in_for_a_column_and_for_what_a_column_lacks() -> None:
    puts, _ = read({"tag": ["own", None], "queue": pa.array([None, None], pa.string())}, tag="t", queue="q")
    assert [(put.header.tag, put.header.queue) for put in puts] == [("own", "q"), ("t", "q")]


def test_a_priority_is_a_column_or_an_option_with_the_bounds_of_a_send() -> None:
    puts, _ = read({"queue": ["q", None], "priority": [-100, None]}, priority=7)
    assert [put.header.queue for put in puts] == ["q^-100", "default^7"]
    for wrong in (101, -101):
        with pytest.raises(ValueError, match="priority=") as refused:
            check_priority(wrong)
        assert reasons({"priority": [wrong]}) == [str(refused.value)]


def test_rows_that_ask_for_the_same_share_a_header() -> None:
    puts, _ = read({"tag": ["t", "t", "u"]})
    assert puts[0].header is puts[1].header
    assert puts[2].header.tag == "u"


def test_an_id_is_made_of_the_key_and_the_named_columns() -> None:
    columns = {"n": [1, 2], "day": [date(2026, 11, 21)] * 2, "data": [{"c": "a"}, {"c": "b"}]}
    assert ids(columns, "data.c", "n", "day") == ["k:a:1:2026-11-21", "k:b:2:2026-11-21"]


def test_two_rows_that_differ_never_share_an_id() -> None:
    made = ids({"a": ["x:y", "x", "x%3Ay"], "b": ["z", "y:z", "z"]}, "a", "b")
    assert len(set(made)) == 3


def test_an_id_of_an_instant_is_the_same_in_each_time_zone() -> None:
    at = pa.array([datetime(2026, 11, 21, 12, tzinfo=UTC)])
    assert ids({"at": at}, "at") == ids({"at": at.cast(pa.timestamp("us", "Asia/Tokyo"))}, "at")


def test_an_id_is_not_made_of_null_nor_cut_short() -> None:
    assert "n is null" in reasons({"n": pa.array([None], pa.int64())}, id_columns=("n",))[0]
    assert "shorter values" in reasons({"n": ["x" * 200]}, id_columns=("n",))[0]


@dataclass
class Order:
    """Data of a handler."""

    number: int


def ship(message: Message[Order]) -> None: ...


@pytest.mark.usefixtures("registry")
def test_data_must_fit_its_handler_however_many_rows_are_checked_at_once() -> None:
    delay_execute("k")(ship)
    assert bodies([{"number": 1}, {"number": 2}]) == [b'{"number":1}', b'{"number":2}']
    puts, bad = read({"data": [{"number": 1}, {"number": None}, {"number": 3}], "key": ["k", "k", "other"]})
    assert [put.id for put in puts] == ["id0", "id2"]
    assert "doesn't fit Order" in bad[0].reason
