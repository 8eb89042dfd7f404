"""An order that stays unpaid, one that is paid, and one that never came to be."""

from django.core import mail
from django.db import transaction
from django.test import TestCase, override_settings

from django_delayq.testing import DelayqMixin, run_due, sent_messages
from example_project.shop.delayed import close_order, dunning, remind_customer
from example_project.shop.models import Order
from example_project.shop.orders import dunning_id, message_ids, open_order, pay_order
from example_project.shop.tests.factories import OrderFactory


class UnpaidOrderTests(DelayqMixin, TestCase):
    """Tests of an order that nobody pays."""

    def setUp(self) -> None:
        super().setUp()
        self.order = open_order("me@example.com")

    def test_is_open_until_its_half_hour_is_over_and_closed_then(self) -> None:
        run_due(until="29m")
        self.assert_state(Order.State.OPEN)
        run_due(until="1m")
        self.assert_state(Order.State.CLOSED)

    def test_is_reminded_of_after_1_3_and_7_days_and_never_again(self) -> None:
        mails = []
        for days in ("1d", "2d", "4d", "100d"):
            run_due(until=days)
            mails.append(len(mail.outbox))
        self.assertEqual(mails, [1, 2, 3, 3])
        self.assertEqual(mail.outbox[0].to, ["me@example.com"])

    def test_is_reminded_of_once_where_a_reminder_is_delivered_twice(self) -> None:
        attempts = run_due(until="1d", deliveries=2)
        self.assertEqual([attempt.key for attempt in attempts], ["order.close"] * 2 + ["order.remind"] * 2)
        self.assertEqual(len(mail.outbox), 1)

    def assert_state(self, state: Order.State) -> None:
        self.order.refresh_from_db()
        self.assertEqual(self.order.state, state)


class PaidOrderTests(DelayqMixin, TestCase):
    """Tests of the messages that a payment stops."""

    def test_paying_stops_the_close_and_all_reminders(self) -> None:
        order = open_order("me@example.com")
        self.assertEqual(pay_order(order), 2)
        self.assertEqual(sent_messages(), [])
        self.assertIsNone(dunning.get(dunning_id(order)))
        self.assertEqual(run_due(until="30d"), [])

    def test_a_payment_that_is_rolled_back_stops_nothing(self) -> None:
        order = open_order("me@example.com")
        with transaction.atomic():
            pay_order(order)
            transaction.set_rollback(True)
        run_due(until="30d")
        self.assertEqual(len(mail.outbox), 3)

    def test_paying_leaves_the_messages_of_other_orders_alone(self) -> None:
        paid, other = open_order("me@example.com"), open_order("you@example.com")
        pay_order(paid)
        self.assertCountEqual([message.id for message in sent_messages()], message_ids(other)[:2])

    def test_a_closed_order_can_not_be_paid_and_keeps_its_reminders(self) -> None:
        order = open_order("me@example.com")
        run_due(until="30m")
        self.assertEqual(pay_order(order), 0)
        run_due(until="30d")
        self.assertEqual(order.reminders.count(), 3)

    def test_what_was_running_while_the_customer_paid_changes_nothing(self) -> None:
        order = OrderFactory.create(state=Order.State.PAID)
        close_order.run(order.pk)
        remind_customer.run(order.pk)
        order.refresh_from_db()
        self.assertEqual(order.state, Order.State.PAID)
        self.assertEqual(mail.outbox, [])


class FailedOrderTests(DelayqMixin, TestCase):
    """Tests that an order and its messages come together or not at all."""

    @override_settings(SHOP_CLOSE_AFTER="never")
    def test_an_order_whose_messages_can_not_be_sent_is_not_saved(self) -> None:
        with self.assertRaisesMessage(ValueError, "never"):
            open_order("me@example.com")
        self.assertFalse(Order.objects.exists())
        self.assertEqual(sent_messages(), [])

    def test_an_order_that_is_rolled_back_sends_nothing(self) -> None:
        with transaction.atomic():
            open_order("me@example.com")
            transaction.set_rollback(True)
        self.assertEqual(sent_messages(), [])
