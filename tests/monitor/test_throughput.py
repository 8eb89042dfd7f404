"""Figures of what finished: exact for the messages that are counted, and near the truth for those before them."""

from random import Random

import pytest

from django_delayq.monitor.throughput import PARTS, WINDOWS, Lateness, Throughput, lateness, throughput, windows_before
from django_delayq.store.throughput import BURST_MS, Finished, Minute, Sample

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def of(minutes: dict[int, Minute], span_ms: int = HOUR_MS) -> Throughput:
    """All is counted."""
    return throughput(NOW, span_ms, Finished(NOW - span_ms, minutes), [], [])


def test_lateness_is_that_of_the_message_in_this_place() -> None:
    assert lateness((late, 1) for late in range(1, 101)) == Lateness(50, 95, 99)
    assert lateness([(1, 1)]) == Lateness(1, 1, 1)
    assert lateness([(-3, 1)]) == Lateness(0, 0, 0)
    assert lateness([]) is None


def test_a_message_that_stands_for_many_counts_as_many() -> None:
    assert lateness([(1, 90), (500, 8), (9, 2)]) == Lateness(1, 500, 500)


def test_nothing_finished_is_no_lateness() -> None:
    seen = of({})
    assert (seen.finished, seen.lateness, seen.per_s, seen.busiest_per_s) == (0, None, 0, 0)


def test_each_minute_is_in_its_part_of_the_span() -> None:
    minutes = {0: Minute(2, 1), 59: Minute(1, 1), 30: Minute(3, 1), 60: Minute(9, 9)}
    hour, day = of(minutes), of(minutes, DAY_MS)
    assert {place: number for place, number in enumerate(hour.parts) if number} == {0: 1, 29: 3, 59: 2}
    assert {place: number for place, number in enumerate(day.parts) if number} == {57: 10, 58: 3, 59: 2}
    assert (hour.finished, day.finished, len(hour.parts)) == (6, 15, PARTS)


def test_the_busiest_rate_is_that_of_ten_seconds() -> None:
    seen = of({0: Minute(5, 4), 7: Minute(600, 300), 61: Minute(900, 900)})
    assert seen.busiest_per_s == 30
    assert seen.per_s == pytest.approx(605 / 3600)


def test_what_was_not_counted_is_told_from_windows_nearly() -> None:
    after_ms = NOW - HOUR_MS // 2
    newest = Finished(after_ms, {ago: Minute(6_000, 1_000) for ago in range(30)})
    windows = windows_before(after_ms, [NOW - HOUR_MS], Random(1))
    sampled = [(window, Sample((window[1] - window[0]) // 10, [50])) for window in windows]
    seen = throughput(NOW, HOUR_MS, newest, [10], sampled)
    assert seen.estimated
    assert seen.finished == pytest.approx(360_000, rel=0.001)
    assert seen.parts == pytest.approx([6_000] * PARTS, rel=0.2)  # a window may end in the next minute
    assert seen.busiest_per_s == 100
    assert seen.lateness == Lateness(10, 50, 50)


def test_a_day_has_no_fewer_than_its_last_hour() -> None:
    windows = windows_before(NOW - 60_000, [NOW - HOUR_MS, NOW - DAY_MS], Random(1))
    sampled = [(window, Sample(9, [1]) if window[0] >= NOW - HOUR_MS else Sample()) for window in windows]
    newest = Finished(NOW - 60_000, {0: Minute(100, 50)})
    of_the_hour = [one for one in sampled if one[0][0] >= NOW - HOUR_MS]
    hour = throughput(NOW, HOUR_MS, newest, [1], of_the_hour)
    day = throughput(NOW, DAY_MS, newest, [1], sampled)
    assert hour.finished == day.finished > 100


@pytest.mark.parametrize("stretch_ms", [WINDOWS * 3, HOUR_MS, DAY_MS])
def test_there_is_a_window_in_each_part_of_a_stretch_and_no_longer_than_a_burst(stretch_ms: int) -> None:
    windows = windows_before(NOW, [NOW - stretch_ms], Random(1))
    part_ms = stretch_ms / WINDOWS
    for part, (after, until, while_ms) in enumerate(windows):
        start = NOW - stretch_ms + part * part_ms
        assert int(start) <= after < until <= start + part_ms
        assert (until - after, while_ms) == (min(BURST_MS, part_ms), part_ms)
    assert len(windows) == WINDOWS


def test_stretches_lie_one_before_the_other() -> None:
    windows = windows_before(NOW - 60_000, [NOW - DAY_MS, NOW - HOUR_MS], Random(1))
    assert len(windows) == 2 * WINDOWS
    assert sum(while_ms for *_, while_ms in windows) == pytest.approx(DAY_MS - 60_000)
    assert max(until for _, until, _ in windows) <= NOW - 60_000
