"""Open and pay orders, and send the messages that follow an order."""

from django.conf import settings
from django.db import transaction

from django_delayq import cancel_delay_messages
from example_project.shop.delayed import close_order, dunning
from example_project.shop.models import Order


def open_order(email: str) -> Order:
    """Save a new order, and send the messages that follow if it stays unpaid: all of it, or nothing on a rollback."""
    with transaction.atomic():
        order = Order.objects.create(email=email)
        close_order.send(order.pk, delay=settings.SHOP_CLOSE_AFTER, id=close_id(order))
        dunning.start(order.pk, id=dunning_id(order))
    return order


def pay_order(order: Order) -> int:
    """Mark an open order as paid, and stop what waits for it. Return how many messages were stopped in time.

    All of it is one transaction: no reminder starts once the order is paid.
    """
    with transaction.atomic():
        if not Order.objects.filter(pk=order.pk, state=Order.State.OPEN).update(state=Order.State.PAID):
            return 0
        return cancel_delay_messages(close_id(order)) + dunning.stop(dunning_id(order))


def message_ids(order: Order) -> list[str]:
    """Return the ids of all messages that may follow an order. Of the reminders, one waits at a time.

    They are made from the order, so nobody has to store them.
    """
    numbers = range(1, len(dunning.steps) + 1)
    return [close_id(order), *(f"{dunning.name}:{dunning_id(order)}@{number}" for number in numbers)]


def close_id(order: Order) -> str:
    return f"order:{order.pk}:close"


def dunning_id(order: Order) -> str:
    return f"order:{order.pk}"
