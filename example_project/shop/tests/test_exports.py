"""Exports of departures: how far one is, and what is left of one that is cancelled."""

import time
from unittest import mock

from django.test import TestCase

from django_delayq.testing import DelayqMixin, run_due
from example_project.shop.exports import ask_for_export, cancel_export, message_of
from example_project.shop.models import Run
from example_project.shop.tests.factories import DepartureFactory


class ExportTests(DelayqMixin, TestCase):
    """Tests of an export of four departures, of which three leave from Newark."""

    def setUp(self) -> None:
        super().setUp()
        for origin in ("EWR", "EWR", "JFK", "EWR"):
            DepartureFactory.create(origin=origin)

    def test_the_departures_of_an_airport_are_written(self) -> None:
        export = ask_for_export("EWR")
        run_due()
        export.refresh_from_db()
        self.assertEqual(export.lines.count("EWR"), 3)
        self.assertNotIn("JFK", export.lines)
        self.assertIsNotNone(export.written_at)
        self.assertIsNone(message_of(export))

    def test_it_says_how_far_it_is(self) -> None:
        export = ask_for_export()
        seen: list[object] = []
        with mock.patch.object(time, "sleep", side_effect=lambda seconds: seen.append(message_of(export))):
            run_due()
        progress = [getattr(message, "progress", None) for message in seen]
        self.assertEqual(progress, [(0, "0 of 4"), (0.25, "1 of 4"), (0.5, "2 of 4"), (0.75, "3 of 4")])

    def test_one_that_is_cancelled_while_it_runs_writes_nothing_and_does_not_run_again(self) -> None:
        export = ask_for_export()
        with mock.patch.object(time, "sleep", side_effect=lambda seconds: cancel_export(export, by="anna")):
            (attempt,) = run_due()
        self.assertEqual((attempt.ended, attempt.error), ("cancel", "cancelled while it ran, by anna"))
        export.refresh_from_db()
        self.assertEqual((export.lines, export.written_at), ("", None))
        self.assertEqual(Run.objects.get().outcome, Run.Outcome.CANCELLED)
        self.assertEqual(run_due(until="1d"), [])
