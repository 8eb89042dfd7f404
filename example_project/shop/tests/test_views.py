"""The pages, by what a visitor does and sees."""

from django.test import TestCase
from django.urls import reverse

from django_delayq.testing import DelayqMixin, run_due, sent_messages
from example_project.shop.models import Export, Order, Product, Store
from example_project.shop.stores import add_product
from example_project.shop.tests.factories import ProductFactory, StoreFactory


def add_indexed(name: str) -> Product:
    """Return a product that the search knows."""
    add_product(StoreFactory.create(), name)
    run_due(until="1m")
    return Product.objects.get(name=name)


class PageTests(DelayqMixin, TestCase):
    """Tests of opening and paying orders, opening stores and giving them products."""

    def test_an_order_is_opened_and_its_page_shows_it(self) -> None:
        page = self.client.post(reverse("shop:open-order"), {"email": "me@example.com"}, follow=True)
        self.assertContains(page, "of me@example.com: open")
        self.assertContains(page, "Reminder 1 of 3 comes next.")
        self.assertEqual(len(sent_messages()), 2)

    def test_the_page_of_an_order_shows_what_waits_and_what_ran(self) -> None:
        self.client.post(reverse("shop:open-order"), {"email": "me@example.com"})
        run_due(until="25h")
        order = Order.objects.get()
        page = self.client.get(reverse("shop:order", args=[order.pk]))
        self.assertEqual([run.key for run in page.context["runs"]], ["order.close", "order.remind"])
        self.assertContains(page, f"<td>dunning:order:{order.pk}@2</td><td>pending</td>")
        self.assertContains(page, "Reminder 2 of 3 comes next.")

    def test_an_order_is_paid_by_a_click(self) -> None:
        self.client.post(reverse("shop:open-order"), {"email": "me@example.com"})
        page = self.client.post(reverse("shop:pay-order", args=[Order.objects.get().pk]), follow=True)
        self.assertContains(page, "of me@example.com: paid")
        self.assertEqual(sent_messages(), [])

    def test_a_store_is_opened_and_gets_a_product(self) -> None:
        self.client.post(reverse("shop:open-store"), {"name": "Tea & Co", "phone": "+1 212 555 0123"})
        store = Store.objects.get()
        page = self.client.post(reverse("shop:add-product", args=[store.pk]), {"name": "Oolong"}, follow=True)
        self.assertContains(page, "Tea &amp; Co")
        self.assertContains(page, "Oolong")
        self.assertEqual([message.key for message in sent_messages()], ["search.index"])

    def test_a_product_is_found_and_renamed(self) -> None:
        product = add_indexed("Oolong")
        page = self.client.get(reverse("shop:search"), {"q": "long"})
        self.assertContains(page, "Oolong")
        self.client.post(reverse("shop:rename-product", args=[product.pk]), {"name": "Darjeeling"})
        run_due(until="1m")
        self.assertNotContains(self.client.get(reverse("shop:search"), {"q": "long"}), "Oolong")
        self.assertContains(self.client.get(reverse("shop:search"), {"q": "darj"}), "Darjeeling")

    def test_a_catalogue_is_imported_and_the_page_says_what_became_of_it(self) -> None:
        url = reverse("shop:import-catalogue", args=[StoreFactory.create().pk])
        page = self.client.post(url, {"names": "Oolong\n\nSencha"}, follow=True)
        self.assertContains(page, "3 rows are imported")
        run_due(errors="keep")
        self.assertContains(self.client.get(reverse("shop:index")), "2 of 3 rows were added, 1 failed")

    def test_an_export_is_asked_for_and_cancelled(self) -> None:
        page = self.client.post(reverse("shop:ask-for-export"), {"origin": "JFK"}, follow=True)
        self.assertContains(page, "of JFK")
        self.client.post(reverse("shop:cancel-export", args=[Export.objects.get().pk]))
        self.assertEqual(run_due(), [])

    def test_what_is_wrong_with_a_form_is_said_and_nothing_is_saved(self) -> None:
        store = StoreFactory.create()
        for url, wrong in (
            (reverse("shop:open-order"), {"email": "nobody"}),
            (reverse("shop:open-store"), {"name": ""}),
            (reverse("shop:add-product", args=[store.pk]), {"name": ""}),
            (reverse("shop:import-catalogue", args=[store.pk]), {"names": ""}),
            (reverse("shop:rename-product", args=[ProductFactory.create(store=store).pk]), {"name": ""}),
            (reverse("shop:ask-for-export"), {"origin": "Newark"}),
        ):
            with self.subTest(url=url):
                page = self.client.post(url, wrong)
                self.assertContains(page, "errorlist", status_code=400)
        self.assertEqual((Order.objects.count(), Store.objects.count(), store.products.count()), (0, 1, 1))
        self.assertFalse(Export.objects.exists())
        self.assertEqual(sent_messages(), [])

    def test_nothing_is_changed_by_a_link(self) -> None:
        for url in (reverse("shop:open-order"), reverse("shop:pay-order", args=[1]), reverse("shop:open-store")):
            with self.subTest(url=url):
                self.assertEqual(self.client.get(url).status_code, 405)
