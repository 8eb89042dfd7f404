"""Opening and paying orders, and the messages that follow an order."""

from django.conf import settings
from django.db import transaction

from django_delayq import cancel_delay_messages
from example_project.shop.delayed import Remind, close_order, remind_customer
from example_project.shop.models import Order


def open_order(email: str) -> Order:
    """Save a new order and send what is to happen when it stays unpaid: all of it, or on a rollback nothing."""
    with transaction.atomic():
        order = Order.objects.create(email=email)
        close_order.send(order.pk, delay=settings.SHOP_CLOSE_AFTER, id=close_id(order))
        for number, delay in enumerate(settings.SHOP_REMIND_AFTER, start=1):
            remind_customer.send(Remind(order.pk, number), delay=delay, id=remind_id(order, number))
    return order


def pay_order(order: Order) -> int:
    """Mark an open order as paid and stop what waits for it. Returns how many messages it stopped in time."""
    if not Order.objects.filter(pk=order.pk, state=Order.State.OPEN).update(state=Order.State.PAID):
        return 0
    return cancel_delay_messages(*message_ids(order))


def message_ids(order: Order) -> list[str]:
    """The ids of all messages that follow an order: known from the order alone, so nobody has to store them."""
    numbers = range(1, len(settings.SHOP_REMIND_AFTER) + 1)
    return [close_id(order), *(remind_id(order, number) for number in numbers)]


def close_id(order: Order) -> str:
    return f"order:{order.pk}:close"


def remind_id(order: Order, number: int) -> str:
    return f"order:{order.pk}:remind:{number}"
