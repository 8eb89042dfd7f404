"""What workers did in a span of time, from the rows that they wrote."""

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_delayq.core.figures import MINUTE_MS, OTHERS, Figures
from django_delayq.core.transitions import SettleAction
from django_delayq.models import FigureRow
from django_delayq.monitor.throughput import (
    Throughput,
    last_day,
    last_hour,
    last_month,
    mean_run_times_ms,
    measure,
)
from django_delayq.store import DatabaseBackend, figures
from django_delayq.support.timestamps import DAY_MS, HOUR_MS
from tests.figure_rows import write_figures

NOW = 1_800_000_000_000 // DAY_MS * DAY_MS + 10 * HOUR_MS + 20 * MINUTE_MS + 1_000

Period = FigureRow.Period


def spans(broker: DatabaseBackend) -> tuple[Throughput, Throughput, Throughput]:
    """Return what was done in the last hour, day and month."""
    hour, day, month = measure(broker.database, NOW, [last_hour(NOW), last_day(NOW), last_month(NOW)]).spans
    return hour, day, month


def places(span: Throughput) -> dict[int, int]:
    """The parts in which something finished, counted back from the last, and how much."""
    return {len(span.parts) - place: number for place, number in enumerate(span.parts, 1) if number}


def test_each_minute_is_in_its_part_of_each_span_and_none_in_two(broker: DatabaseBackend, database: str) -> None:
    for ago_ms in (0, MINUTE_MS, 59 * MINUTE_MS, HOUR_MS, 23 * HOUR_MS, DAY_MS, 29 * DAY_MS, 30 * DAY_MS):
        write_figures(database, NOW - ago_ms)
    hour, day, month = spans(broker)
    assert places(hour) == {0: 1, 1: 1, 59: 1}
    assert places(day) == {0: 2, 1: 2, 23: 1}
    assert places(month) == {0: 4, 1: 2, 29: 1}
    assert (hour.finished, day.finished, month.finished) == (3, 5, 7)
    assert (len(hour.parts), len(day.parts), len(month.parts)) == (60, 24, 30)


def test_rates_are_those_of_the_time_that_has_passed(broker: DatabaseBackend, database: str) -> None:
    write_figures(database, NOW - MINUTE_MS, number=600)
    write_figures(database, NOW - 3 * MINUTE_MS, number=120)
    hour, day, _ = spans(broker)
    assert hour.per_s == pytest.approx(720 / (59 * 60 + 1))
    assert (hour.busiest_per_s, day.busiest_per_s) == (10, 0.2)


def test_nothing_done_is_no_lateness(broker: DatabaseBackend) -> None:
    hour, *_ = spans(broker)
    assert (hour.finished, hour.per_s, hour.busiest_per_s) == (0, 0, 0)
    assert (hour.lateness, hour.figures.run_times.quantiles) == (None, None)


def test_lateness_and_run_times_are_those_of_all_attempts(broker: DatabaseBackend, database: str) -> None:
    write_figures(database, NOW, number=90, late_ms=20, ran_ms=1)
    write_figures(database, NOW, SettleAction.RETRY, key="other", number=10, late_ms=20_000, ran_ms=1)
    hour, *_ = spans(broker)
    assert hour.lateness is not None
    assert 10 < hour.lateness.p50 <= 25
    assert 5_000 < hour.lateness.p99 <= 30_000
    ran = hour.figures.run_times.quantiles
    assert ran is not None
    assert ran.p99 <= 2


def test_rolling_up_changes_nothing_that_is_told_of_a_day_or_a_month_or_all_time(
    broker: DatabaseBackend, database: str
) -> None:
    for hour in range(40):
        write_figures(database, NOW - hour * HOUR_MS, number=hour, ran_ms=hour, key=f"k{hour % 3}")
        write_figures(database, NOW - hour * HOUR_MS - 7 * MINUTE_MS, SettleAction.BURY, queue="mail")
    asked = [last_hour(NOW), last_day(NOW), last_month(NOW)]
    before = measure(broker.database, NOW, asked)
    while figures.roll_up(broker.database, NOW):
        pass
    assert FigureRow.objects.using(database).filter(period=Period.HOUR).exists()
    assert measure(broker.database, NOW, asked) == before
    write_figures(database, NOW + 29 * DAY_MS, key="later")
    assert figures.roll_up(broker.database, NOW + 29 * DAY_MS + HOUR_MS) > 0  # and old days are pruned
    after = measure(broker.database, NOW, asked)
    assert (after.spans[2].finished, len(after.ever)) == (sum(range(11)) + 1, len(before.ever) + 1)
    assert {pair: after.ever[pair] for pair in before.ever} == before.ever


def test_it_is_told_by_queue_and_key_up_to_a_bound(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "<script>alert('%s {kind}')</script>"
    write_figures(database, NOW, number=2)
    write_figures(database, NOW - 2 * DAY_MS, period=Period.HOUR, number=9)  # not of the day
    write_figures(database, NOW, queue="mail", key=hostile, number=3)
    write_figures(database, NOW, alias="other", number=7)
    measured = measure(broker.database, NOW, [last_hour(NOW), last_day(NOW)])
    assert {pair: each.finished for pair, each in measured.by_pair.items()} == {
        ("default", "k"): 2,
        ("mail", hostile): 3,
    }
    monkeypatch.setattr(figures, "MOST_PAIRS", 1)
    measured = measure(broker.database, NOW, [last_day(NOW)])
    assert {pair: each.finished for pair, each in measured.by_pair.items()} == {("default", "k"): 2, OTHERS: 3}
    write_figures(database, NOW - DAY_MS // 2, queue="mail", key=hostile, number=4, period=Period.HOUR)
    measured = measure(broker.database, NOW, [last_day(NOW)])  # what has rows of its own keeps its name
    assert {pair: each.finished for pair, each in measured.by_pair.items()} == {("mail", hostile): 7, OTHERS: 2}


def test_the_number_of_statements_does_not_grow_with_what_was_done(broker: DatabaseBackend, database: str) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connections[database]) as captured:
            spans(broker)
        return len(captured)

    assert statements() == 1
    for number in range(30):
        write_figures(database, NOW - number * HOUR_MS, key=f"k{number}")
    assert statements() == 1


def means(broker: DatabaseBackend, *keys: str) -> dict[str, float]:
    """Return the mean run times that the forecast asks for."""
    return mean_run_times_ms(measure(broker.database, NOW, [last_hour(NOW), last_day(NOW)]), keys)


def test_a_message_ran_for_as_long_as_all_its_attempts(broker: DatabaseBackend, database: str) -> None:
    write_figures(database, NOW, SettleAction.RETRY, number=3, ran_ms=1_000)
    assert means(broker, "k") == {"k": 1_000}  # as long as none has ended, by attempt
    write_figures(database, NOW, SettleAction.FINISH, ran_ms=2_000)
    write_figures(database, NOW, SettleAction.BURY, ran_ms=3_000)
    assert means(broker, "k") == {"k": 4_000}


def test_how_long_messages_of_a_key_run_is_told_by_the_last_day_or_else_by_all_time(
    broker: DatabaseBackend, database: str
) -> None:
    write_figures(database, NOW - 40 * DAY_MS, period=Period.TOTAL, number=100, ran_ms=9_000)
    assert means(broker, "k") == {"k": 9_000}
    write_figures(database, NOW - DAY_MS // 2, period=Period.HOUR, ran_ms=1_000)
    assert means(broker, "k") == {"k": 1_000}
    write_figures(database, NOW, queue="mail", ran_ms=3_000)
    assert means(broker, "k", "new") == {"k": 2_000}
    assert means(broker, "new") == {}


def test_figures_of_what_never_started_tell_no_run_time(broker: DatabaseBackend, database: str) -> None:
    write_figures(database, NOW, number=0)
    FigureRow.objects.using(database).update(buried=4)
    assert measure(broker.database, NOW, [last_day(NOW)]).by_pair["default", "k"].buried == 4
    assert means(broker, "k") == {}
    assert Figures.sum([]).attempts == 0
