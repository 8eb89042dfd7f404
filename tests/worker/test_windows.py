"""A message's window holds for what delays it later: a retry, a snooze."""

import asyncio
import logging
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_delayq import At, Bury, Message, Retry, Snooze, Window, delay_execute
from django_delayq.brokers.base import Claimed, Header, Transition
from django_delayq.core.human_time import Windows, spread_of
from django_delayq.core.rules import Rule, encode
from django_delayq.core.transitions import SettleAction
from django_delayq.support.timestamps import from_ms, to_epoch_ms
from django_delayq.worker import attempt
from tests.worker.rig import Rig, make_handler

DAYTIME = Window("mon-sun", "09:00", "18:00", zone="Europe/Rome")
NIGHT = Window("mon-sun", "22:00", "06:00", zone="Europe/Rome")
TOKYO = Window("mon-sun", "09:00", "18:00", zone="Asia/Tokyo")
AT_THREE = to_epoch_ms(datetime(2026, 6, 1, 1, tzinfo=UTC))  # 03:00 in Rome, 10:00 in Tokyo
NINE = to_epoch_ms(datetime(2026, 6, 1, 7, tzinfo=UTC))  # 09:00 in Rome, 16:00 in Tokyo
HALF_AN_HOUR = 1_800_000


def after(
    exception: BaseException,
    window: Windows | None = DAYTIME,
    *,
    rule: Rule | None = None,
    now_ms: int = AT_THREE,
    **header: Any,
) -> Transition:
    """Return what becomes of a message whose handler, with this window, raises at three at night."""
    handler = make_handler(lambda message: None)
    handler.window = window
    claimed = Claimed("a", 7, now_ms, Header("default", "k", **header), b"null")
    claimed.rule = "" if rule is None else encode(rule) or ""
    return attempt.after(claimed, handler, exception, now_ms, now_ms)


def due_ms(transition: Transition, now_ms: int = AT_THREE) -> int:
    """Return when the message is due: what is told to people and what is written must agree."""
    assert transition.delay_ms is not None
    if transition.at_ms is not None:
        assert transition.at_ms == now_ms + transition.delay_ms
    return now_ms + transition.delay_ms


@pytest.mark.parametrize("exception", [ValueError(), Retry(), Retry("1m"), Snooze("1m")], ids=repr)
def test_what_would_run_again_at_three_at_night_runs_when_the_window_opens(exception: BaseException) -> None:
    assert due_ms(after(exception)) == NINE
    assert after(exception).at_ms == NINE  # not that much later, if the write takes a while


@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_a_named_time_is_moved_too(kind: Any) -> None:
    assert due_ms(after(kind(at=from_ms(AT_THREE + 60_000)))) == NINE
    inside = NINE + 60_000
    assert due_ms(after(kind(at=from_ms(inside)))) == inside


def test_what_runs_again_while_the_window_is_open_is_not_moved() -> None:
    assert due_ms(after(Snooze("90s"), now_ms=NINE), NINE) == NINE + 90_000
    last = NINE + 9 * 3_600_000 - 1
    assert due_ms(after(Snooze("1ms"), now_ms=last), last) == NINE + 86_400_000


@pytest.mark.parametrize("exception", [ValueError(), Retry("1m"), Snooze("1m")], ids=repr)
def test_without_a_window_nothing_is_moved(exception: BaseException) -> None:
    transition = after(exception, None)
    assert due_ms(transition) == AT_THREE + 60_000
    assert transition.at_ms is None


@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_an_exception_may_have_another_window_or_none(kind: Any) -> None:
    assert due_ms(after(kind("1m", window=None))) == AT_THREE + 60_000
    assert due_ms(after(kind("1m", window=NIGHT))) == AT_THREE + 60_000
    assert due_ms(after(kind("5h", window=[NIGHT, TOKYO]))) == AT_THREE + 5 * 3_600_000
    assert due_ms(after(kind("1m", window=DAYTIME), None)) == NINE


def test_the_window_of_the_message_comes_before_that_of_its_handler() -> None:
    sent = Rule(0, windows=(TOKYO,))
    assert due_ms(after(Snooze("1m"), rule=sent)) == AT_THREE + 60_000
    assert due_ms(after(ValueError(), None, rule=Rule(0, windows=(DAYTIME,)))) == NINE
    assert due_ms(after(Snooze("1m", window=NIGHT), rule=Rule(0, windows=(DAYTIME,)))) == AT_THREE + 60_000


def test_a_local_time_without_a_window_leaves_it_to_the_handler() -> None:
    assert due_ms(after(ValueError(), rule=Rule(0, At(time="09:00", zone="UTC")))) == NINE


def test_what_waits_for_the_opening_is_spread_as_the_send_was() -> None:
    spread = Rule(0, windows=(DAYTIME,), spread_ms=HALF_AN_HOUR)
    assert due_ms(after(ValueError(), rule=spread)) == NINE + spread_of("a", HALF_AN_HOUR) > NINE
    assert due_ms(after(Snooze("1m"), rule=spread, now_ms=NINE), NINE) == NINE + 60_000


def test_what_would_expire_before_the_window_opens_fails() -> None:
    transition = after(ValueError("x"), expires_ms=3_600_000, scheduled_ms=AT_THREE)
    assert transition.action is SettleAction.BURY
    assert transition.error == "ValueError: x (the next try would be after it expires)"


def test_a_burial_has_no_due_time() -> None:
    assert (after(Bury("no")).delay_ms, after(Bury("no")).at_ms) == (None, None)
    assert after(ValueError(), max_attempts=1).at_ms is None


def failing(day: date) -> bool:
    raise ZeroDivisionError


@pytest.mark.parametrize("exception", [ValueError(), Retry("1m"), Snooze("1m")], ids=repr)
def test_a_window_of_no_use_does_not_hold_up_the_message(
    exception: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    window = Window("mon-sun", "09:00", "18:00", zone="UTC", calendar=failing)
    assert due_ms(after(exception, window)) == AT_THREE + 60_000
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "The window of message 'a' (k) is of no use (ValueError: calendar=failing fails for 2026-06-01: "
        "ZeroDivisionError); it runs again in or out of it."
    )


def test_a_rule_that_cannot_be_read_does_not_hold_up_the_message(caplog: pytest.LogCaptureFixture) -> None:
    handler = make_handler(lambda message: None)
    claimed = Claimed("a", 7, AT_THREE, Header("default", "k"), b"null", rule="nonsense")
    transition = attempt.after(claimed, handler, Snooze("1m"), AT_THREE, AT_THREE)
    assert due_ms(transition) == AT_THREE + 60_000
    assert "can't be read" in caplog.text


def opens_later() -> tuple[Window, datetime]:
    """Return a window that is closed now, and when it opens: on the hour, two to three hours from now."""
    opens = (datetime.now(UTC) + timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
    return Window("mon-sun", f"{opens:%H:%M}", f"{opens + timedelta(hours=1):%H:%M}", zone="UTC"), opens


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("exception", [ValueError("x"), Snooze("1m")], ids=repr)
def test_a_worker_moves_what_its_handlers_put_off(rig: Rig, exception: Exception, is_async: bool) -> None:
    def sync_handler(message: Message[Any]) -> None:
        raise exception

    async def async_handler(message: Message[Any]) -> None:
        await asyncio.sleep(0)
        raise exception

    handler = make_handler(async_handler if is_async else sync_handler)
    handler.window, opens = opens_later()
    rig.send("a")
    rig.drain(handler)
    assert from_ms(rig.see("a").due_ms) == opens


def test_a_wrong_window_is_refused_where_it_is_written() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"Handler .*: window='mon-fri' is str; give Window\("):

        @delay_execute(key="k", window="mon-fri")  # type: ignore[arg-type]
        def handler(message: Message[Any]) -> None: ...

    with pytest.raises(ImproperlyConfigured, match=r"window=\[\] is never open"):

        @delay_execute(key="k", window=[])
        def another(message: Message[Any]) -> None: ...

    wrong: Any
    for wrong in ("mon-fri", [], 5):
        with pytest.raises((TypeError, ValueError), match="window="):
            Retry(window=wrong)
        with pytest.raises((TypeError, ValueError), match="window="):
            Snooze(1, window=wrong)
