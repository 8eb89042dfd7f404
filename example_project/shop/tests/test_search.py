"""The search, which hears of products once they have settled down."""

import time
from unittest import mock

from django.test import TestCase

from django_delayq import get_delay_message
from django_delayq.testing import DelayqMixin, run_due, sent_messages
from example_project.shop.delayed import index_products
from example_project.shop.models import Product, Run, SearchDocument
from example_project.shop.search import find
from example_project.shop.stores import add_product, rename_product
from example_project.shop.tests.factories import ProductFactory, StoreFactory


class SearchTests(DelayqMixin, TestCase):
    """Tests of products that change, one after another and all at once."""

    def test_a_product_that_changes_often_is_indexed_once_as_it_is_in_the_end(self) -> None:
        product = ProductFactory.create()
        for name in ("Oolong", "Sencha", "Matcha"):
            rename_product(product, name)
            run_due(until="9s")
        (message,) = sent_messages("search.index")
        waiting = get_delay_message(message.id)
        self.assertEqual(waiting and waiting.merged, 2)
        self.assertEqual(len(run_due(until="1s")), 1)
        self.assertEqual([document.text for document in find("a")], ["Matcha"])

    def test_a_product_that_never_rests_is_indexed_a_minute_after_its_first_change(self) -> None:
        product = ProductFactory.create()
        for number in range(12):
            rename_product(product, f"Tea {number}")
            run_due(until="5s")
        self.assertEqual(SearchDocument.objects.get().text, "Tea 11")

    def test_a_change_that_comes_while_the_product_is_indexed_is_indexed_after_it(self) -> None:
        product = ProductFactory.create()
        rename_product(product, "Oolong")
        with mock.patch.object(time, "sleep", side_effect=lambda seconds: rename_product(product, "Sencha")):
            run_due(until="10s")
        self.assertEqual(SearchDocument.objects.get().text, "Oolong")
        run_due(until="11s")
        self.assertEqual(SearchDocument.objects.get().text, "Sencha")

    def test_many_products_are_indexed_in_one_call(self) -> None:
        for number in range(30):
            add_product(StoreFactory.create(), f"Tea {number}")
        self.assertEqual(len(run_due(until="11s")), 30)
        self.assertEqual(SearchDocument.objects.count(), 30)
        self.assertEqual(Run.objects.filter(key="search.index").values("started_at").distinct().count(), 1)

    def test_a_product_that_was_deleted_meanwhile_is_left_out(self) -> None:
        store = StoreFactory.create()
        add_product(store, "Tea")
        add_product(store, "Gone")
        Product.objects.get(name="Gone").delete()
        self.assertEqual([attempt.ended for attempt in run_due(until="11s")], ["finish", "finish"])
        self.assertEqual(SearchDocument.objects.get().text, "Tea")

    def test_a_call_that_is_repeated_changes_nothing(self) -> None:
        product = ProductFactory.create()
        index_products.run(product.pk)
        index_products.run(product.pk)
        self.assertEqual(SearchDocument.objects.get().version, product.version)
