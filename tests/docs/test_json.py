"""What --json writes has the keys that the reference names."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from pytest_django import Settings

from django_delayq import Every, schedule_delay_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import ExecutorInfo, Header, NewMessage, Pause, RunInfo, WorkerInfo
from tests.docs.tables import codes, tables

QUEUE, KEY, ID = "mail", "order.remind", "one"


@pytest.fixture
def told() -> dict[str, list[str]]:
    """The keys by what the first cell says, without its marks."""
    (table,) = tables("reference/commands.md", "JSON")
    return {what.replace("`", ""): codes(keys) for what, keys in table}


@pytest.fixture(autouse=True)
def waiting_message(settings: Settings) -> None:
    """A message, a worker and a pause, on a memory broker of this test."""
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    get_backend().queue.enqueue([NewMessage(ID, Header(QUEUE, KEY), b"1")])
    runs, executors = [RunInfo(ID, QUEUE, KEY, 0)], [ExecutorInfo(1, {KEY: 1})]
    get_backend().presence.heartbeat(WorkerInfo("w", [QUEUE], [KEY], 1, 0, runs=runs, executors=executors))
    get_backend().presence.pause(Pause(QUEUE, None, "x"))


def written(*arguments: str) -> Any:
    out = StringIO()
    call_command("delayq", *arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def test_status(told: dict[str, list[str]]) -> None:
    status = written("status")
    assert list(status) == told["status"]
    assert list(status["server"]) == told["status, server"]
    assert list(status["states"]) == told["status, states"]
    assert [list(each) for each in status["waiting"]] == [told["status, each of waiting"]]
    assert [list(each) for each in status["pauses"]] == [told["status, explain, each of pauses"]]
    (worker,) = status["workers"]
    assert list(worker) == told["status, each of workers"]
    assert [list(each) for each in worker["executors"]] == [told["status, each of executors"]]
    assert [list(each) for each in worker["runs"]] == [told["status, each of runs"]]


def test_a_message(told: dict[str, list[str]]) -> None:
    (message,) = written("peek", QUEUE)
    assert list(message) == told["peek, errors: a list"]


def test_explain(told: dict[str, list[str]]) -> None:
    _, *more = told["explain"]
    explained = written("explain", ID)
    assert list(explained) == [*told["peek, errors: a list"], *more]
    assert [list(each) for each in explained["pauses"]] == [told["status, explain, each of pauses"]]


def test_audit(told: dict[str, list[str]]) -> None:
    assert list(written("audit")) == told["audit"]


@pytest.mark.django_db
def test_check_data(told: dict[str, list[str]], settings: Settings) -> None:
    broker = "django_delayq.brokers.database.DatabaseBroker"
    settings.DELAYQ = {"default": {"BROKER": broker, "STORE": {}, "OPTIONS": {"unknown_keys": "allow"}}}
    get_backend().queue.enqueue([NewMessage(ID, Header(QUEUE, KEY), b"1")])
    checked = written("check-data")
    assert list(checked) == told["check-data"]
    assert [list(each) for each in checked["keys"]] == [told["check-data, each of keys"]]


@pytest.mark.django_db
def test_schedules(told: dict[str, list[str]], settings: Settings) -> None:
    broker = "django_delayq.brokers.database.DatabaseBroker"
    settings.DELAYQ = {"default": {"BROKER": broker, "STORE": {}, "OPTIONS": {"unknown_keys": "allow"}}}
    schedule_delay_message(KEY, name="one", every=Every(hours=1))
    (listed,) = written("schedules")
    assert list(listed) == list(written("schedules", "one")) == told["schedules: a list; with a name, one"]
