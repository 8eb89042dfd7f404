"""What falls due in the next hours, and how long it takes."""

from django_delayq.monitor.forecast import HOUR_MS, HOURS, forecast

EIGHT = 1_800_000_000_000  # 2027-01-15T08:00:00Z
MINUTE_MS = 60_000


def test_an_hour_tells_what_falls_due_in_it_and_how_long_that_takes() -> None:
    hours = forecast(EIGHT - HOUR_MS, 0, {EIGHT: 41_000}, None, rate_per_s=41_000 / 720)
    assert len(hours) == HOURS
    assert (hours[1].starts_ms, hours[1].due, hours[1].drain_ms) == (EIGHT, 41_000, 12 * MINUTE_MS)
    assert (hours[0].due, hours[0].drain_ms, hours[2].drain_ms) == (0, 0, 0)


def test_the_first_hour_begins_now_and_has_what_is_ready() -> None:
    now_ms = EIGHT + 10 * MINUTE_MS
    first, second, *_ = forecast(now_ms, 60, {EIGHT: 60}, None, rate_per_s=1)
    assert (first.starts_ms, first.due, first.drain_ms) == (now_ms, 60, 2 * MINUTE_MS)
    assert second.starts_ms == EIGHT + HOUR_MS


def test_what_an_hour_does_not_finish_is_left_to_the_next() -> None:
    hours = forecast(EIGHT, 0, {EIGHT: 5_400, EIGHT + HOUR_MS: 1_800}, None, rate_per_s=1)
    assert [hour.drain_ms for hour in hours[:3]] == [5_400_000, 3_600_000, 0]


def test_without_a_measured_rate_nothing_is_said_about_the_time() -> None:
    assert {hour.drain_ms for hour in forecast(EIGHT, 1, {EIGHT: 1}, None, rate_per_s=0)} == {None}


def test_an_hour_is_complete_when_all_of_it_was_counted() -> None:
    hours = forecast(EIGHT, 0, {}, EIGHT + 2 * HOUR_MS, rate_per_s=1)
    assert [hour.complete for hour in hours[:4]] == [True, True, False, False]
