"""Figures of what finished: exact for few messages, and near the truth from samples of many."""

from collections.abc import Sequence

import pytest

from django_delayq.monitor.throughput import PARTS, Lateness, counted, estimated, windows_of
from django_delayq.store.figures import Finished

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000


def test_lateness_is_that_of_the_message_in_this_place() -> None:
    ended = [(NOW - place, late) for place, late in enumerate(range(1, 101))]
    assert counted(ended, NOW, HOUR_MS).lateness == Lateness(50, 95, 99)
    assert counted(ended[:1], NOW, HOUR_MS).lateness == Lateness(1, 1, 1)
    assert counted([(NOW, -3)], NOW, HOUR_MS).lateness == Lateness(0, 0, 0)


def test_nothing_finished_is_no_lateness() -> None:
    seen = counted([], NOW, HOUR_MS)
    assert (seen.finished, seen.lateness, seen.per_s, seen.busiest_per_s) == (0, None, 0, 0)
    assert counted([(NOW, None)], NOW, HOUR_MS).lateness is None


def test_each_message_is_in_its_part_of_the_span() -> None:
    ended = [(NOW, 0), (NOW - 1, 0), (NOW - HOUR_MS + 1, 0), (NOW - HOUR_MS // 2, 0)]
    parts = counted(ended, NOW, HOUR_MS).parts
    assert len(parts) == PARTS
    assert {part: number for part, number in enumerate(parts) if number} == {0: 1, PARTS // 2: 1, PARTS - 1: 2}


@pytest.mark.parametrize("later_ms", [0, 5_000, 9_950])
def test_the_busiest_rate_is_that_of_any_ten_seconds_whenever_somebody_looks(later_ms: int) -> None:
    ended = [(NOW - 30_000 - i * 20, 0) for i in range(500)] + [(NOW - 50_000, 0)]
    seen = counted(ended, NOW + later_ms, HOUR_MS)
    assert seen.busiest_per_s == 50
    assert seen.per_s == pytest.approx(501 / 3600)


def sampled(ended: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]], most: int) -> list[Finished]:
    """What the tables would give, newest first."""
    samples = []
    for after, until in windows:
        sample = [each for each in ended if after < each[0] <= until]
        samples.append(Finished(after if len(sample) < most else sample[most - 1][0] - 1, list(sample[:most])))
    return samples


def test_samples_tell_numbers_and_lateness_nearly() -> None:
    ended = [(NOW - i * 10, i % 100) for i in range(HOUR_MS // 10)]  # 100 a second, newest first
    windows = windows_of(NOW, HOUR_MS, 1_000)
    seen = estimated(sampled(ended, windows, 1_000), windows, HOUR_MS)
    assert seen.estimated
    assert seen.finished == pytest.approx(len(ended), rel=0.02)
    assert seen.per_s == pytest.approx(100, rel=0.02)
    assert seen.busiest_per_s == pytest.approx(100, rel=0.02)
    assert seen.lateness is not None
    assert seen.lateness.p50 == pytest.approx(50, abs=3)
    assert seen.lateness.p95 == pytest.approx(95, abs=3)


def test_a_window_with_more_than_is_read_tells_the_rate_of_what_was_read() -> None:
    ended = [(NOW - i * 10, 0) for i in range(HOUR_MS // 10)]
    windows = windows_of(NOW, HOUR_MS, 10_000)
    seen = estimated(sampled(ended, windows, 50), windows, HOUR_MS)
    assert seen.per_s == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("width_ms", [0, 7, 10**9])
def test_there_is_a_window_in_each_part_and_it_stays_in_it(width_ms: float) -> None:
    part_ms = HOUR_MS / PARTS
    for part, (after, until) in enumerate(windows_of(NOW, HOUR_MS, width_ms)):
        start = NOW - HOUR_MS + part * part_ms
        assert start <= after < until <= start + part_ms
