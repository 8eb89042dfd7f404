"""The text that a store gets when it has no products, and the gateway that sends it."""

from django.test import TestCase

from django_delayq.testing import DelayqMixin, run_due, sent_messages
from example_project.shop.models import Run
from example_project.shop.stores import add_product, open_store, text_id
from example_project.shop.tests.factories import ProductFactory


class StoreTests(DelayqMixin, TestCase):
    """Tests of a store, four days after it was opened."""

    def test_a_store_without_products_gets_one_text_after_four_days(self) -> None:
        store = open_store("Tea & Co", "+1 212 555 0123")
        run_due(until="95h")
        store.refresh_from_db()
        self.assertIsNone(store.texted_at)
        run_due(until="1h")
        store.refresh_from_db()
        self.assertIsNotNone(store.texted_at)

    def test_a_first_product_stops_the_text(self) -> None:
        store = open_store("Tea & Co", "+1 212 555 0123")
        self.assertEqual(add_product(store, "Tea"), 1)
        self.assertEqual(sent_messages("store.text"), [])

    def test_a_text_that_was_not_stopped_in_time_is_not_sent_to_a_store_with_products(self) -> None:
        store = open_store("Tea & Co", "+1 212 555 0123")
        ProductFactory.create(store=store)
        run_due(until="4d")
        store.refresh_from_db()
        self.assertIsNone(store.texted_at)

    def test_a_busy_gateway_is_tried_again_a_second_later(self) -> None:
        store = open_store("Tea & Co", "+1 212 555 0129")
        (first,) = run_due(until="4d", errors="keep")
        (second,) = run_due(until="1s")
        self.assertEqual((first.ended, second.ended), ("retry", "finish"))
        runs = Run.objects.filter(message_id=text_id(store)).order_by("attempt")
        self.assertEqual([run.outcome for run in runs], [Run.Outcome.FAILED, Run.Outcome.FINISHED])

    def test_a_number_that_does_not_exist_is_given_up_at_once(self) -> None:
        open_store("Tea & Co", "+1 212 555 0000")
        (attempt,) = run_due(until="5d", errors="keep")
        self.assertEqual(attempt.ended, "bury")
        self.assertIn("+1 212 555 0000 does not exist", attempt.error)
