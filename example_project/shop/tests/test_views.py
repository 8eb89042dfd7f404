"""The pages, by what a visitor does and sees."""

from django.test import TestCase
from django.urls import reverse

from django_delayq.testing import DelayqMixin, run_due, sent_messages
from example_project.shop.models import Order, Store
from example_project.shop.tests.factories import StoreFactory


class PageTests(DelayqMixin, TestCase):
    """Tests of opening and paying orders, opening stores and giving them products."""

    def test_an_order_is_opened_and_its_page_shows_it(self) -> None:
        page = self.client.post(reverse("shop:open-order"), {"email": "me@example.com"}, follow=True)
        self.assertContains(page, "of me@example.com: open")
        self.assertEqual(len(sent_messages()), 4)

    def test_the_page_of_an_order_shows_what_waits_and_what_ran(self) -> None:
        self.client.post(reverse("shop:open-order"), {"email": "me@example.com"})
        run_due(until="1h")
        order = Order.objects.get()
        page = self.client.get(reverse("shop:order", args=[order.pk]))
        self.assertEqual([run.key for run in page.context["runs"]], ["order.close"])
        self.assertEqual([message.key for message in page.context["messages"]], ["order.remind"] * 3)
        self.assertContains(page, f"<td>order:{order.pk}:remind:3</td><td>pending</td>")

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
        self.assertEqual(sent_messages(), [])

    def test_what_is_wrong_with_a_form_is_said_and_nothing_is_saved(self) -> None:
        store = StoreFactory.create()
        for url, wrong in (
            (reverse("shop:open-order"), {"email": "nobody"}),
            (reverse("shop:open-store"), {"name": ""}),
            (reverse("shop:add-product", args=[store.pk]), {"name": ""}),
        ):
            with self.subTest(url=url):
                page = self.client.post(url, wrong)
                self.assertContains(page, "errorlist", status_code=400)
        self.assertEqual((Order.objects.count(), Store.objects.count(), store.products.count()), (0, 1, 0))
        self.assertEqual(sent_messages(), [])

    def test_nothing_is_changed_by_a_link(self) -> None:
        for url in (reverse("shop:open-order"), reverse("shop:pay-order", args=[1]), reverse("shop:open-store")):
            with self.subTest(url=url):
                self.assertEqual(self.client.get(url).status_code, 405)
