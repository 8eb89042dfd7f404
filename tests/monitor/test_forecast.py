"""What falls due in the next hours, and how long it takes."""

from django_delayq.brokers.base import Counts, HandsInfo, SetCount, WorkerInfo
from django_delayq.monitor.capacity import Capacity, Drain, teams_of
from django_delayq.monitor.forecast import forecast
from django_delayq.store.figures import HOUR_MS, HOURS, Waiting

EIGHT = 1_800_000_000_000  # 2027-01-15T08:00:00Z
MINUTE_MS = 60_000
PAIR = ("default", "k")
WORKER = WorkerInfo("w", ["default"], ["k"], 0, 0, hands=[HandsInfo(1, {"k": 1})])


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
    return Waiting(counts, 0, 0, by_hour, known_until_ms)


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
