"""Tests of the figures that the demo takes from the tables at its end."""

from django.test import TestCase

from django_delayq.testing import DelayqMixin, run_due
from example_project.demo.tables import kinds_by_table
from example_project.shop.orders import open_order, pay_order
from example_project.shop.stores import open_store


class TableTests(DelayqMixin, TestCase):
    def test_each_row_is_counted_by_what_it_says_and_the_last_are_shown(self) -> None:
        pay_order(open_order("ann@example.com"))
        open_store("Tea & Co", "+1 212 555 0000")
        run_due(until="5d", errors="keep")
        order = open_order("bob@example.com")
        by_table = dict(kinds_by_table())
        self.assertEqual([kind.count for kind in by_table["delayq_ready"]], [2])
        self.assertEqual([(kind.says, kind.count) for kind in by_table["delayq_finish"]], [("cancelled", 2)])
        (failed,) = by_table["delayq_error"]
        self.assertIn("does not exist", failed.says)
        last = [id for id, _, _ in by_table["delayq_ready"][0].last]
        self.assertEqual(last, [f"dunning:order:{order.pk}@1", f"order:{order.pk}:close"])
