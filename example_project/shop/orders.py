"""Open and pay orders, and send the messages that follow an order."""

from django.conf import settings
from django.db import transaction

from django_delayq import cancel_delay_messages
from example_project.shop.delayed import Remind, close_order, remind_customer
from example_project.shop.models import Order


def open_order(email: str) -> Order:
    """Save a new order, and send the messages that follow if it stays unpaid: all of it, or nothing on a rollback."""
    with transaction.atomic():
        order = Order.objects.create(email=email)
        close_order.send(order.pk, delay=settings.SHOP_CLOSE_AFTER, id=close_id(order))
        for number, delay in enumerate(settings.SHOP_REMIND_AFTER, start=1):
            remind_customer.send(Remind(order.pk, number), delay=delay, id=remind_id(order, number))
    return order


def pay_order(order: Order) -> int:
    """Mark an open order as paid, and stop the messages that wait for it. Return how many were stopped in time."""
    if not Order.objects.filter(pk=order.pk, state=Order.State.OPEN).update(state=Order.State.PAID):
        return 0
    return cancel_delay_messages(*message_ids(order))


def message_ids(order: Order) -> list[str]:
    """Return the ids of all messages that follow an order.

    They are made from the order, so nobody has to store them.
    """
    numbers = range(1, len(settings.SHOP_REMIND_AFTER) + 1)
    return [close_id(order), *(remind_id(order, number) for number in numbers)]


def close_id(order: Order) -> str:
    return f"order:{order.pk}:close"


def remind_id(order: Order, number: int) -> str:
    return f"order:{order.pk}:remind:{number}"
