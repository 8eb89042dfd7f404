"""Tests of how the days of the file become seconds of the demo."""

from datetime import UTC, datetime, timedelta

from example_project.demo.pace import DAY, shorten
from example_project.demo.promises import checkin_sends
from example_project.shop.departures import to_instant
from example_project.shop.tests.factories import DepartureFactory

OPENING = to_instant("2013-11-03T00:00")
START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_day_lasts_as_long_as_the_pace_says_and_half_a_day_half_as_long() -> None:
    assert shorten(timedelta(days=7)) == 7 * DAY
    assert shorten(timedelta(hours=12)) == DAY / 2


def test_checkins_close_in_the_order_of_their_elapsed_time_across_the_hour_that_exists_twice() -> None:
    locals = ["2013-11-03T01:30", "2013-11-03T02:30", "2013-11-03T23:00"]
    departures = [DepartureFactory.build(pk=pk, departs_at=to_instant(local)) for pk, local in enumerate(locals)]
    sends = list(checkin_sends(departures, OPENING, START))
    elapsed = [timedelta(minutes=30), timedelta(hours=2, minutes=30), timedelta(hours=23)]  # the day has 25 hours
    assert [send.at for send in sends] == [START + shorten(time) for time in elapsed]
    assert [send.data for send in sends] == [0, 1, 2]
