"""Sequences in a site's tests: the steps run as the clock moves, or as messages get older."""

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from pytest_django import Settings

from django_delayq import At, Sequence, Start, Step
from django_delayq.api import sequences as api
from django_delayq.testing import assert_not_sent, assert_sent, run_due, sent_messages
from tests.testing.handlers import seen

DAY = timedelta(days=1)
START = datetime(2030, 1, 1, 6, 30, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put the default alias on a store of each kind."""
    kind: str = request.param
    name: str = request.getfixturevalue({"postgresql": "postgres_database"}.get(kind, f"{kind}_database"))
    settings.DELAYQ = {"default": {"STORE": {}, "DATABASE": name}}
    monkeypatch.setattr(api, "by_alias", {})
    return name


pytestmark = pytest.mark.usefixtures("database", "delayq_memory")


def test_each_step_runs_at_its_time() -> None:
    with time_machine.travel(START, tick=False):
        Sequence("s", [Step("testing.note", "3d"), Step("testing.note_atomically", "7d")]).start("x", id="1")
        assert_sent("testing.note", data="x", delay="3d")
        assert run_due(until="2d") == []
        attempts = run_due(until="9d")
        assert [attempt.id for attempt in attempts] == ["s:1@1", "s:1@2"]
        passed = [attempt.at - START for attempt in attempts]
        assert [each - each % timedelta(seconds=1) for each in passed] == [3 * DAY, 10 * DAY]
        assert [message.sequence for message in seen] == ["1", "1"]
        assert sent_messages() == []


def test_the_steps_of_many_run_at_their_times() -> None:
    with time_machine.travel(START, tick=False):
        s = Sequence("s", [Step("testing.note", "3d"), Step("testing.note_atomically", "7d")])
        s.start_many(Start(name, id=name, tag="t") for name in "xy")
        assert_sent("testing.note", data="y", delay="3d")
        assert len(sent_messages()) == 2
        assert sorted(attempt.id for attempt in run_due(until="11d")) == ["s:x@1", "s:x@2", "s:y@1", "s:y@2"]
        assert sent_messages() == []


@pytest.mark.usefixtures("_no_library")
def test_each_step_runs_as_messages_get_older() -> None:
    Sequence("s", [Step("testing.note", "3d"), Step("testing.note", "7d")]).start("x", id="1")
    assert [attempt.id for attempt in run_due(until="4d")] == ["s:1@1"]
    assert run_due(until="5d") == []
    assert [attempt.id for attempt in run_due(until="2d")] == ["s:1@2"]


def test_a_step_at_a_local_time_counts_from_the_end_of_the_one_before() -> None:
    with time_machine.travel(START, tick=False):
        steps = [Step("testing.note", "1d"), Step("testing.note", at=At(time="09:00", zone="UTC", days=2))]
        Sequence("s", steps).start("x", id="1")
        *_, last = run_due(until="5d")
        assert last.at.replace(microsecond=0) == datetime(2030, 1, 4, 9, tzinfo=UTC)


def test_a_handler_stops_the_sequence() -> None:
    s = Sequence("s", [Step("testing.stop_sequences"), Step("testing.note")])
    s.start("x", id="1", tag="customer:3")
    assert [attempt.id for attempt in run_due(until="1d")] == ["s:1@1"]
    assert_not_sent("testing.note")
    assert s.get("1") is None
