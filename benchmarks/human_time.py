"""Measure how many due times and occurrences are found, against the conversion to a local time that each needs."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from time import perf_counter
from zoneinfo import ZoneInfo

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from django_delayq import At, Cron, Every, RRule, Window

SLICE = 1_000
ZONES = ("Europe/Rome", "America/New_York", "Asia/Tokyo", "Australia/Lord_Howe", "America/Sao_Paulo")
NOWS = [datetime(2026, 1, 1, tzinfo=UTC) + n * timedelta(hours=8, minutes=46) for n in range(SLICE)]  # over a year
HOLIDAYS = frozenset({date(2026, 1, 1), date(2026, 4, 6), date(2026, 12, 25)})


def run() -> list[Result]:
    """Return for each rule the ratio of what it finds in a second to conversions of `datetime.astimezone`."""
    zones = [ZoneInfo(name) for name in ZONES]
    windows = [Window("mon-fri", "09:00", "18:00", zone=name, calendar=HOLIDAYS) for name in ZONES]
    crons = [Cron("0 9 * * 1-5", zone=name) for name in ZONES]
    yearly = [Cron("0 9 1 1 *", zone=name) for name in ZONES]
    leap_days = [Cron("0 9 29 2 *", zone=name) for name in ZONES]
    months = [Every(months=1, day=-1, time="18:00", zone=name) for name in ZONES]
    rrules = [RRule("FREQ=WEEKLY;BYDAY=MO,TH", start=datetime(2025, 1, 6, 9), zone=name) for name in ZONES]
    return [
        _result("At, three days on, made for each", 0.05, zones, _at),
        _result("Window on working days, with holidays", 0.03, zones, lambda n, now: windows[n % 5].resolve(now)),
        _result("Cron, weekdays at nine", 0.02, zones, lambda n, now: crons[n % 5].after(now)),
        _result("Cron, once a year", 0.02, zones, lambda n, now: yearly[n % 5].after(now)),
        _result("Cron, on leap days", 0.02, zones, lambda n, now: leap_days[n % 5].after(now)),
        _result("Every, the last day of a month", 0.02, zones, lambda n, now: months[n % 5].after(now)),
        _result("RRule, twice a week", 0.02, zones, lambda n, now: rrules[n % 5].after(now)),
    ]


def _at(n: int, now: datetime) -> datetime:
    return At(days=3, time="09:00", zone=ZONES[n % 5]).resolve(now)


def _result(what: str, least: float, zones: list[ZoneInfo], find: Callable[[int, datetime], object]) -> Result:
    def ours_s() -> float:
        return _timed(find)

    def floor_s() -> float:
        return _timed(lambda n, now: now.astimezone(zones[n % 5]))

    rates = in_turn(ours_s, floor_s, SLICE, scaled(100))
    return at_least(f"{what} / datetime.astimezone", rates.ratio, least, str(rates))


def _timed(find: Callable[[int, datetime], object]) -> float:
    started = perf_counter()
    for n, now in enumerate(NOWS):
        find(n, now)
    return perf_counter() - started
