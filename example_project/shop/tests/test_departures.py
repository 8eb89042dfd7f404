"""Local times of the day that the clocks went back, and the check-in."""

from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.test import SimpleTestCase, TestCase

from example_project.shop.delayed import close_checkin
from example_project.shop.departures import read_departures, to_instant
from example_project.shop.tests.factories import DepartureFactory

DEPARTURES = Path(settings.BASE_DIR, "example_project", "data", "departures_2013-11-03.csv")


class LocalTimeTests(SimpleTestCase):
    """Tests of local times in New York on 3 November 2013, when the clocks went back."""

    def test_of_the_hour_that_exists_twice_the_first_is_meant(self) -> None:
        for local, hour, minute in (("00:59", 4, 59), ("01:00", 5, 0), ("01:59", 5, 59), ("02:00", 7, 0)):
            with self.subTest(local=local):
                instant = datetime(2013, 11, 3, hour, minute, tzinfo=UTC)
                self.assertEqual(to_instant(f"2013-11-03T{local}"), instant)

    def test_checkin_closes_60_elapsed_minutes_before_departure(self) -> None:
        departure = DepartureFactory.build(departs_at=to_instant("2013-11-03T02:30"))
        second_half_past_one = datetime(2013, 11, 3, 6, 30, tzinfo=UTC)
        self.assertEqual(departure.checkin_closes_at, second_half_past_one)

    def test_the_file_has_902_departures(self) -> None:
        departures = list(read_departures(DEPARTURES))
        self.assertEqual(len(departures), 902)
        self.assertEqual(str(departures[0]), "UA322 EWR-IAH")
        self.assertEqual(departures[0].departs_at, datetime(2013, 11, 3, 10, 20, tzinfo=UTC))


class CheckinTests(TestCase):
    """Tests of the handler that closes check-in."""

    def test_a_message_that_runs_again_does_not_move_the_time_at_which_checkin_closed(self) -> None:
        departure = DepartureFactory.create()
        close_checkin.run(departure.pk)
        departure.refresh_from_db()
        closed_at = departure.checkin_closed_at
        close_checkin.run(departure.pk)
        departure.refresh_from_db()
        self.assertIsNotNone(closed_at)
        self.assertEqual(departure.checkin_closed_at, closed_at)
