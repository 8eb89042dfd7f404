"""Catalogues: many products at once, and the message that follows the last of them."""

from django.db import transaction
from django.test import TestCase

from django_delayq.testing import DelayqMixin, run_due, sent_messages
from example_project.shop.delayed import Row, add_from_catalogue
from example_project.shop.models import Catalogue, Product
from example_project.shop.stores import import_catalogue
from example_project.shop.tests.factories import StoreFactory


class CatalogueTests(DelayqMixin, TestCase):
    """Tests of a store that sends a list of names."""

    def test_all_rows_are_added_and_the_catalogue_says_so(self) -> None:
        store = StoreFactory.create()
        catalogue = import_catalogue(store, ["Oolong", "Sencha", ""])
        ends = [(attempt.key, attempt.ended) for attempt in run_due(errors="keep")]
        self.assertCountEqual(ends[:3], [("catalogue.add", "finish")] * 2 + [("catalogue.add", "bury")])
        self.assertEqual(ends[3:], [("catalogue.done", "finish")])
        catalogue.refresh_from_db()
        self.assertEqual((catalogue.rows, catalogue.added, catalogue.failed), (3, 2, 1))
        self.assertEqual(store.products.count(), 2)

    def test_its_products_are_found(self) -> None:
        import_catalogue(StoreFactory.create(), ["Oolong"])
        run_due(until="11s")
        self.assertTrue(Product.objects.filter(document__text="Oolong").exists())

    def test_a_row_that_is_delivered_twice_adds_one_product(self) -> None:
        store = StoreFactory.create()
        add_from_catalogue.run(Row(store.pk, "Oolong"))
        add_from_catalogue.run(Row(store.pk, "Oolong"))
        self.assertEqual(store.products.count(), 1)

    def test_a_catalogue_that_is_rolled_back_adds_nothing(self) -> None:
        with transaction.atomic():
            import_catalogue(StoreFactory.create(), ["Oolong"])
            transaction.set_rollback(True)
        self.assertFalse(Catalogue.objects.exists())
        self.assertEqual(sent_messages(), [])
