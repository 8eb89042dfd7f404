"""How tasks send: in batches of bounded size, patiently, and in no other way than the site's own."""

from pathlib import Path

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Header, NewMessage
from django_delayq.conf import get_alias
from django_delayq.core.errors import SendError
from django_delayq.spark.errors import SparkError
from django_delayq.spark.write.options import WriteOptions
from django_delayq.spark.write.sinks import BATCH_BYTES, batches, patiently, sink_of

HEADER = Header("q", "k")


def test_a_batch_ends_at_its_count_and_where_its_data_is_large() -> None:
    small = [NewMessage(str(i), HEADER, b"1") for i in range(5)]
    assert [len(batch) for batch in batches(small, 2)] == [2, 2, 1]
    large = [NewMessage(str(i), HEADER, b"x" * (BATCH_BYTES // 2)) for i in range(5)]
    assert [len(batch) for batch in batches(large, 1000)] == [3, 2]
    assert list(batches([], 2)) == []


def test_what_fails_for_a_while_is_tried_again() -> None:
    answers = iter([SendError("away"), SendError("away still")])

    def send() -> int:
        for error in answers:
            raise error
        return 7

    assert patiently(send, 10_000) == 7


def test_a_broker_that_stays_away_ends_the_task_with_its_address(settings: Settings, tmp_path: Path) -> None:
    settings.DELAYQ = {
        "default": {
            "BROKER": "django_delayq.brokers.redis.RedisBroker",
            "LOCATION": f"unix://{tmp_path}/none.sock?db=0",
            "STORE": None,
        }
    }
    sink = sink_of(get_alias(), WriteOptions.of({"settings": "tests.settings", "job": "j", "patience": "1ms"}))
    sink.send([NewMessage("a", HEADER, b"1")])
    with pytest.raises(SparkError, match=r"Given up after 1 ms .*none\.sock"):
        sink.finish()


def test_workers_know_a_lane_before_its_rows_are_there(settings: Settings, sqlite_database: str) -> None:
    settings.DELAYQ = {
        "default": {
            "BROKER": "django_delayq.brokers.memory.MemoryBroker",
            "DATABASE": sqlite_database,
            "STORE": {},
        }
    }
    sink = sink_of(get_alias(), WriteOptions.of({"settings": "tests.settings"}))
    sink.send([NewMessage("a", Header("q^5", "k"), b"1")])
    assert set(get_backend().presence.lanes()) == {"q^5"}
