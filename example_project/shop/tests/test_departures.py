"""Local times of the day that the clocks went back, and the check-in."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.conf import settings

from example_project.shop.delayed import close_checkin
from example_project.shop.departures import read_departures, to_instant
from example_project.shop.tests.factories import DepartureFactory

DEPARTURES = Path(settings.BASE_DIR, "example_project", "data", "departures_2013-11-03.csv")


@pytest.mark.parametrize(
    ("local", "instant"),
    [
        ("2013-11-03T00:59", datetime(2013, 11, 3, 4, 59, tzinfo=UTC)),
        ("2013-11-03T01:00", datetime(2013, 11, 3, 5, 0, tzinfo=UTC)),
        ("2013-11-03T01:59", datetime(2013, 11, 3, 5, 59, tzinfo=UTC)),
        ("2013-11-03T02:00", datetime(2013, 11, 3, 7, 0, tzinfo=UTC)),
    ],
)
def test_of_the_hour_that_exists_twice_the_first_is_meant(local: str, instant: datetime) -> None:
    assert to_instant(local) == instant


def test_checkin_closes_60_elapsed_minutes_before_departure_also_where_the_clock_shows_the_same_time() -> None:
    departure = DepartureFactory.build(departs_at=to_instant("2013-11-03T02:30"))
    assert departure.checkin_closes_at == datetime(2013, 11, 3, 6, 30, tzinfo=UTC)  # 01:30, the second one


def test_the_file_has_902_departures_and_each_is_named_by_its_flight() -> None:
    departures = list(read_departures(DEPARTURES))
    assert len(departures) == 902
    assert str(departures[0]) == "UA322 EWR-IAH"
    assert departures[0].departs_at == datetime(2013, 11, 3, 10, 20, tzinfo=UTC)


@pytest.mark.django_db
def test_a_message_that_runs_again_does_not_move_the_time_at_which_checkin_closed() -> None:
    departure = DepartureFactory.create()
    close_checkin.run(departure.pk)
    departure.refresh_from_db()
    closed_at = departure.checkin_closed_at
    close_checkin.run(departure.pk)
    departure.refresh_from_db()
    assert closed_at is not None
    assert departure.checkin_closed_at == closed_at
