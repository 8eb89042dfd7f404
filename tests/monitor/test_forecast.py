"""What falls due in the next hours, and how long it takes."""

from collections import Counter

import pytest

from django_delayq.brokers.base import Counts, ExecutorInfo, SetCount, WorkerInfo
from django_delayq.core.limits import Limits
from django_delayq.monitor.forecast import Capacity, Drain, Hour, Need, forecast, teams_of, workers_needed
from django_delayq.store.statistics import AHEAD_MS, HOURS, Estimate, Waiting
from django_delayq.support.timestamps import HOUR_MS

EIGHT = 1_800_000_000_000  # 2027-01-15T08:00:00Z
MINUTE_MS = 60_000
PAIR = ("default", "k")
WORKER = WorkerInfo("w", ["default"], ["k"], 0, 0, executors=[ExecutorInfo(1, {"k": 1})])


def taking(ms: float, *workers: WorkerInfo) -> Capacity:
    """A message takes so long."""
    return Capacity(teams_of(workers or [WORKER]), {"k": ms})


def waiting(
    now_ms: int,
    pending_by_hour: dict[int, int],
    ready: int = 0,
    known_until_ms: int | None = None,
    *,
    ready_capped: bool = False,
) -> Waiting:
    """So many of one queue and key."""
    counts = Counts(now_ms, [SetCount(*PAIR, 0, ready, None, ready_capped=ready_capped)], 0, 0, 0)
    by_hour = {hour_ms: {PAIR: due} for hour_ms, due in pending_by_hour.items()}
    return Waiting(counts, now_ms - now_ms % HOUR_MS, 0, 0, by_hour, known_until_ms)


def test_an_hour_tells_what_falls_due_in_it_and_how_long_that_takes() -> None:
    hours = forecast(waiting(EIGHT - HOUR_MS, {EIGHT: 41_000}), taking(720_000 / 41_000))
    assert len(hours) == HOURS
    assert (hours[1].starts_ms, hours[1].due, hours[1].drain) == (EIGHT, 41_000, Drain(12 * MINUTE_MS))
    assert (hours[0].due, hours[0].drain, hours[2].drain) == (0, Drain(0), Drain(0))


def test_the_first_hour_begins_now_and_has_what_is_ready() -> None:
    now_ms = EIGHT + 10 * MINUTE_MS
    first, second, *_ = forecast(waiting(now_ms, {EIGHT: 60}, ready=60), taking(1_000))
    assert (first.starts_ms, first.due, first.drain) == (now_ms, 60, Drain(2 * MINUTE_MS))
    assert second.starts_ms == EIGHT + HOUR_MS


def test_hours_are_those_that_were_counted() -> None:
    found = waiting(EIGHT + 10 * MINUTE_MS, {EIGHT + HOUR_MS // 4: 1})
    found.hour_began_ms = EIGHT - 3 * HOUR_MS // 4  # as in Kathmandu
    assert [(hour.starts_ms, hour.due) for hour in forecast(found, None)[:2]] == [
        (EIGHT + 10 * MINUTE_MS, 0),
        (EIGHT + HOUR_MS // 4, 1),
    ]


def test_what_an_hour_does_not_finish_is_left_to_the_next() -> None:
    hours = forecast(waiting(EIGHT, {EIGHT: 5_400, EIGHT + HOUR_MS: 1_800}), taking(1_000))
    assert [hour.drain.ms for hour in hours[:3]] == [5_400_000, 3_600_000, 0]


def test_what_no_worker_asks_for_is_left_to_each_hour() -> None:
    hours = forecast(waiting(EIGHT, {EIGHT + HOUR_MS: 1}), Capacity([], {"k": 1_000}))
    assert [hour.drain for hour in hours[:3]] == [Drain(0), Drain(None, unserved=True), Drain(None, unserved=True)]


def test_without_knowing_the_workers_nothing_is_said_about_the_time() -> None:
    assert {hour.drain for hour in forecast(waiting(EIGHT, {EIGHT: 1}, ready=1), None)} == {Drain(None)}


def test_an_hour_is_complete_when_all_of_it_was_counted() -> None:
    hours = forecast(waiting(EIGHT, {}, known_until_ms=EIGHT + 2 * HOUR_MS), taking(1_000))
    assert [hour.complete for hour in hours[:4]] == [True, True, False, False]
    assert [hour.drain.at_least for hour in hours[:4]] == [False, False, True, True]


def test_where_more_is_ready_than_was_counted_every_hour_takes_at_least_so_long() -> None:
    hours = forecast(waiting(EIGHT, {}, ready=1, ready_capped=True), taking(1_000))
    assert {hour.complete for hour in hours} == {True}
    assert {hour.drain.at_least for hour in hours} == {True}


def test_with_more_queues_and_keys_than_are_told_no_hour_is_complete() -> None:
    found = waiting(EIGHT, {EIGHT: 1})
    found.more_sets = True
    hours = forecast(found, taking(1_000))
    assert {hour.complete for hour in hours} == {False}
    assert {hour.drain.at_least for hour in hours} == {True}


def of_two_keys(
    by_hour: dict[int, dict[str, int]], ran_ms: dict[str, float], slots: dict[str, int]
) -> tuple[Hour, ...]:
    pending = {hour_ms: {("default", key): due for key, due in of.items()} for hour_ms, of in by_hour.items()}
    worker = WorkerInfo("w", ["default"], list(slots), 0, 0, executors=[ExecutorInfo(8, slots)])
    return forecast(Waiting(Counts(EIGHT, [], 0, 0, 0), EIGHT, 0, 0, pending), Capacity(teams_of([worker]), ran_ms))


def test_what_is_not_known_to_run_is_left_out_of_each_hour() -> None:
    hours = of_two_keys({EIGHT: {"k": 60, "new": 1}}, {"k": 1_000}, {"k": 1, "new": 1})
    assert [hour.drain for hour in hours[:2]] == [Drain(60_000, at_least=True), Drain(None)]
    hours = of_two_keys({EIGHT: {"k": 5_400, "parked": 1}}, {"k": 1_000, "parked": 1_000}, {"k": 1})
    assert [hour.drain for hour in hours[1:3]] == [Drain(1_800_000, at_least=True), Drain(None, unserved=True)]


def test_a_backlog_of_one_key_grows_by_no_other() -> None:
    by_hour = {EIGHT: {"k": 7_200, "l": 1_800}, EIGHT + HOUR_MS: {"l": 1_800}, EIGHT + 2 * HOUR_MS: {"l": 1_800}}
    hours = of_two_keys(by_hour, {"k": 1_000, "l": 1_000}, {"k": 1, "l": 1})
    assert [hour.drain.ms for hour in hours[:3]] == [7_200_000, 3_600_000, 1_800_000]


def needed(soon: int, capacity: Capacity | None, ready: int = 0, known_until_ms: int | None = None) -> Need:
    found = waiting(EIGHT, {}, ready, known_until_ms)
    found.due_soon = Counter({PAIR: soon})
    return workers_needed(found, capacity)


@pytest.mark.parametrize("workers", [1, 7])
def test_as_many_workers_are_needed_as_run_in_time_what_falls_due_however_many_there_are(workers: int) -> None:
    live = taking(1_000, *[WORKER] * workers)
    assert [needed(soon, live) for soon in (0, 1, 900, 901, 9_000)] == [Need(0), Need(1), Need(1), Need(2), Need(10)]
    assert needed(900, live, ready=900) == Need(2)
    assert needed(1, taking(0.001, *[WORKER] * workers)) == Need(1)
    assert needed(9_000_000, taking(0, *[WORKER] * workers)) == Need(2)  # to claim and to settle takes time too


def test_a_worker_with_more_slots_does_more() -> None:
    four = WorkerInfo("w", ["default"], ["k"], 0, 0, executors=[ExecutorInfo(4, {"k": 4})])
    assert needed(9_000, taking(1_000, four)) == Need(3)


@pytest.mark.parametrize("limits", [Limits(max_concurrency=2), Limits(interval_us=500_000)], ids=["at once", "rate"])
def test_no_worker_is_needed_for_what_a_limit_keeps_from_starting(limits: Limits) -> None:
    assert needed(9_000, Capacity(teams_of([WORKER]), {"k": 1_000}, {"k": limits})) == Need(2)


def test_nothing_is_said_of_the_workers_needed_while_it_is_not_known() -> None:
    assert needed(1, None) == needed(1, Capacity([], {"k": 1_000})) == Need(None)
    assert needed(1, Capacity(teams_of([WORKER]), {})) == Need(None)


def test_more_workers_may_be_needed_where_not_all_was_counted() -> None:
    assert needed(900, taking(1_000), known_until_ms=EIGHT + AHEAD_MS) == Need(1)
    assert needed(900, taking(1_000), known_until_ms=EIGHT + AHEAD_MS - 1) == Need(1, at_least=True)
    found = waiting(EIGHT, {}, ready=1)
    found.due_soon = Counter({("default", "new"): 1})
    assert workers_needed(found, taking(1_000)) == Need(1, at_least=True)


def test_what_was_not_counted_is_taken_as_it_was_estimated() -> None:
    found = waiting(EIGHT, {}, ready=500, known_until_ms=EIGHT + 1, ready_capped=True)
    found.due_soon = Counter({PAIR: 10, ("default", "l"): 900})
    assert workers_needed(found, taking(1_000)) == Need(1, at_least=True)
    found.estimate = Estimate(Counter({PAIR: 9_000}), Counter({PAIR: 1_800}))
    assert workers_needed(found, taking(1_000)) == Need(12, at_least=True)  # of `l` no run time is known
    found.due_soon = Counter({PAIR: 2_700})  # counted, so there are no fewer
    assert workers_needed(found, taking(1_000)) == Need(13)
    assert forecast(found, taking(1_000))[0].drain.ms == 9_000_000
    found.more_sets = True
    assert workers_needed(found, taking(1_000)) == Need(13, at_least=True)
