"""Tests that each use of the shop adds up in the end, and is told if it does not."""

import time
from unittest import mock

from django.test import TestCase

from django_delayq.models import FinishMessage
from django_delayq.testing import DelayqMixin, run_due
from example_project.demo.uses import Use, uses
from example_project.shop.exports import ask_for_export, cancel_export
from example_project.shop.models import Catalogue, Export, Order, Reminder, SearchDocument
from example_project.shop.orders import open_order, pay_order
from example_project.shop.stores import import_catalogue, rename_product
from example_project.shop.tests.factories import DepartureFactory, ProductFactory, StoreFactory


def use(name: str) -> Use:
    return next(use for use in uses() if use.name == name)


class UseTests(DelayqMixin, TestCase):
    """Tests of a small week."""

    def setUp(self) -> None:
        super().setUp()
        product = ProductFactory.create()
        for name in ("Oolong", "Sencha"):
            rename_product(product, name)
        open_order("me@example.com")
        pay_order(open_order("you@example.com"))
        import_catalogue(StoreFactory.create(), ["Cup", "Pot", ""])
        DepartureFactory.create_batch(2)
        cancelled = ask_for_export()
        with mock.patch.object(time, "sleep", side_effect=lambda seconds: cancel_export(cancelled, by="anna")):
            run_due(errors="keep")
        ask_for_export()
        run_due(until="10d", errors="keep")

    def test_all_add_up_and_say_what_was(self) -> None:
        self.assertEqual([use.name for use in uses() if not use.adds_up], [])
        self.assertIn("5 changes of 3 products: 2 were merged, and 3 messages ran in 1 calls", use("search").says)
        self.assertIn("1 of 1 unpaid orders got all 3 reminders; 1 of 1 paid ones were stopped", use("dunning").says)
        self.assertIn("2 added and 1 failed", use("catalogue").says)
        self.assertIn("1 written, with 2 of 2 departures, and 1 cancelled", use("export").says)

    def test_a_document_that_has_missed_a_change_is_told(self) -> None:
        SearchDocument.objects.filter(text="Sencha").update(version=1)
        self.assertFalse(use("search").adds_up)

    def test_a_product_that_the_search_does_not_know_is_told(self) -> None:
        SearchDocument.objects.filter(text="Cup").delete()
        self.assertFalse(use("search").adds_up)

    def test_a_reminder_that_is_missing_is_told(self) -> None:
        Reminder.objects.all()[0].delete()
        self.assertFalse(use("dunning").adds_up)

    def test_a_reminder_of_a_paid_order_is_told(self) -> None:
        paid = Order.objects.get(state=Order.State.PAID)
        Reminder.objects.create(order=paid, message_id=f"dunning:order:{paid.pk}@1")
        self.assertFalse(use("dunning").adds_up)

    def test_a_catalogue_that_was_told_something_else_is_told(self) -> None:
        Catalogue.objects.update(added=3)
        self.assertFalse(use("catalogue").adds_up)

    def test_a_product_too_many_is_told(self) -> None:
        ProductFactory.create(store=Catalogue.objects.get().store)
        self.assertFalse(use("catalogue").adds_up)

    def test_an_export_that_lacks_a_departure_or_has_no_end_is_told(self) -> None:
        DepartureFactory.create()
        self.assertFalse(use("export").adds_up)
        Export.objects.create()
        self.assertFalse(use("export").adds_up)
        self.assertEqual(FinishMessage.objects.filter(key="departures.export").count(), 2)
