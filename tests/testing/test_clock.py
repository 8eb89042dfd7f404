"""Time in tests: the stores follow Python's clock, which run_due moves by time-machine or freezegun, or else not."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import freezegun
import pytest
import time_machine
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from pytest_django import Settings

from django_delayq import Every, Send, get_delay_message, schedule_delay_message, send_delay_messages
from django_delayq.conf import get_alias
from django_delayq.core.message import State
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.support.timestamps import from_ms
from django_delayq.testing import arun_due, run_due, sent_messages, use_memory_broker
from tests.testing.handlers import chain, daily, fail, note, note_async, note_atomically, seen

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
LIBRARIES: dict[str, Callable[[datetime], AbstractContextManager[Any]]] = {
    "time-machine": lambda at: time_machine.travel(at, tick=False),
    "freezegun": freezegun.freeze_time,
}
"""What stops the clock by each library."""


@pytest.fixture(
    params=[
        "no store",
        pytest.param("no store, in a transaction", marks=pytest.mark.django_db),
        pytest.param("sqlite", marks=pytest.mark.django_db),
        "postgresql",
        "mariadb",
    ]
)
def kind(request: pytest.FixtureRequest, settings: Settings) -> str:
    """Each kind of alias: what it says of now is Python's, SQLite's, PostgreSQL's or MariaDB's on a site."""
    kind: str = request.param
    if kind == "sqlite":
        settings.DELAYQ = {"default": {"STORE": {}}}
    elif kind in ("postgresql", "mariadb"):
        database = request.getfixturevalue("postgres_database" if kind == "postgresql" else "mariadb_database")
        settings.DELAYQ = {"default": {"STORE": {}, "DATABASE": database}}
    return kind


@pytest.fixture(params=["time-machine", "freezegun", "neither"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return which library is installed."""
    installed: str = request.param
    if installed != "time-machine":
        monkeypatch.setitem(sys.modules, "time_machine", None)
    if installed == "neither":
        monkeypatch.setitem(sys.modules, "freezegun", None)
        monkeypatch.delitem(sys.modules, "freezegun.api")
    return installed


@pytest.fixture
def _memory(kind: str, delayq_memory: None) -> None:
    """The broker in memory is for those settings."""


def _days(times: list[datetime], start: datetime) -> list[int]:
    return [round((time - start) / DAY) for time in times]


@pytest.mark.usefixtures("_memory")
def test_a_daily_job_runs_each_day_at_the_time_that_it_sees(installed: str, caplog: pytest.LogCaptureFixture) -> None:
    start = timezone.now()
    daily.send([], at=start + DAY)
    attempts = run_due(until="3d")
    assert _days([attempt.at for attempt in attempts], start) == [1, 2, 3]
    moved = 0 if installed == "neither" else 1
    (*_, last) = sent_messages()
    assert _days([datetime.fromisoformat(text) for text in last.data], start) == [moved, 2 * moved, 3 * moved]
    assert _days([timezone.now()], start) == [3 * moved]
    assert len(run_due(until="1d")) == 1
    assert caplog.text == ""  # nothing of a clock that jumped


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize("library", LIBRARIES)
def test_delay_and_at_count_from_the_clock_that_the_test_has_stopped(library: str) -> None:
    with LIBRARIES[library](NEW_YEAR) as clock:
        note.send("delay", id="delay", delay="1h")
        note.send("at", id="at", at=timezone.now() + HOUR)
        assert {(info.sent_at, info.due_at) for info in sent_messages()} == {(NEW_YEAR, NEW_YEAR + HOUR)}
        clock.move_to(NEW_YEAR + HOUR)
        assert len(run_due()) == 2
        assert {(from_ms(message.started_ms), message.due_at) for message in seen} == {
            (NEW_YEAR + HOUR, NEW_YEAR + HOUR)
        }
        note.send("next", delay="1d")
        (attempt,) = run_due(until="7d")
        assert attempt.at == NEW_YEAR + HOUR + DAY
        assert timezone.now() == NEW_YEAR + HOUR + 7 * DAY


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize(
    "kind", [pytest.param("sqlite", marks=pytest.mark.django_db), "postgresql", "mariadb"], indirect=True
)
def test_every_statement_takes_the_time_of_the_test(kind: str) -> None:
    with time_machine.travel(NEW_YEAR, tick=False):
        send_delay_messages([Send("testing.note", "a"), Send("testing.note", "b")])
        note_atomically.send("c")
        fail.send("d")
        run_due(errors="keep")
    using = get_alias().database
    finished = FinishMessage.objects.using(using)
    times = {time for row in finished for time in (row.sent_at, row.due_at, row.started_at, row.ended_at)}
    assert (len(finished), times) == (3, {NEW_YEAR})
    (again,) = ReadyMessage.objects.using(using)
    assert (again.sent_at, again.due_at) == (NEW_YEAR, NEW_YEAR + HOUR)


@pytest.mark.usefixtures("_memory", "_no_library")
def test_without_a_library_all_that_was_written_gets_older(kind: str) -> None:
    fail.send("f", id="failed")
    note.send("later", id="later", delay="30d", expires="1h")
    start = timezone.now()
    run_due(until="7d", errors="keep")
    failed, later = get_delay_message("failed"), get_delay_message("later")
    assert failed is not None
    assert later is not None
    assert (failed.state, later.state) == (State.FAILED, State.PENDING)
    assert later.expires_at is not None
    assert _days([failed.sent_at, later.sent_at, later.due_at, later.expires_at], start) == [-7, -7, 23, 23]


@pytest.mark.parametrize("kind", ["no store", pytest.param("sqlite", marks=pytest.mark.django_db)], indirect=True)
class TestEnd:
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_the_clock_of_the_test_is_where_it_was_after_the_block(self, kind: str, library: str) -> None:
        with LIBRARIES[library](NEW_YEAR):
            with use_memory_broker():
                chain.send(3)
                run_due(until="2d")
                run_due(until="1d")
                assert timezone.now() == NEW_YEAR + 3 * DAY
            assert timezone.now() == NEW_YEAR

    def test_python_s_clock_is_put_back_after_the_block(self, kind: str, installed: str) -> None:
        start = timezone.now()
        with use_memory_broker():
            run_due(until="3d")
            chain.send(0, delay="1d")
            assert len(run_due(until="1d")) == 1
        assert _days([timezone.now()], start) == [0]

    def test_without_a_block_it_is_put_back_after_each_run_and_messages_get_older(
        self, kind: str, installed: str, settings: Settings
    ) -> None:
        alias: dict[str, Any] = {"STORE": None} if kind == "no store" else {"STORE": {}}
        settings.DELAYQ = {"default": alias | {"BROKER": "django_delayq.testing.VirtualTimeBroker"}}
        start = timezone.now()
        daily.send([], delay="1d")
        for _ in range(3):
            (attempt,) = run_due(until="1d")
            assert _days([timezone.now()], start) == [0]
        assert _days([attempt.at], start) == [3]
        (later,) = sent_messages()
        assert _days([later.due_at], start) == [1]


@pytest.mark.django_db
def test_a_schedule_is_refused_where_the_clock_is_put_back_after_each_run(settings: Settings, installed: str) -> None:
    settings.DELAYQ = {"default": {"STORE": {}, "BROKER": "django_delayq.testing.VirtualTimeBroker"}}
    schedule_delay_message("testing.note", "a", name="s", every=Every(hours=1))
    with pytest.raises(ImproperlyConfigured, match=r"install time-machine, and use .* use_memory_broker\(\)"):
        run_due(until="1h")
    with time_machine.travel(timezone.now()) if installed == "time-machine" else use_memory_broker():
        if installed != "neither":
            schedule_delay_message("testing.note", "a", name="s", every=Every(hours=1))
            assert len(run_due(until="1h")) == 1


@pytest.mark.django_db
def test_async_code_and_handlers_see_the_moved_time(settings: Settings, installed: str, delayq_memory: None) -> None:
    async def use() -> None:
        await note_async.asend("a", at=timezone.now() + DAY)
        assert len(await arun_due(until="1d")) == 1

    start = timezone.now()
    async_to_sync(use)()
    assert _days([from_ms(seen[0].started_ms)], start) == [0 if installed == "neither" else 1]
