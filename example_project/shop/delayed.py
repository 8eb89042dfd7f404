"""The work that the shop does later. django_delayq finds this file by its name.

A message can run twice if its worker was killed, so each handler looks first whether its work is still to be done.
"""

import logging
from dataclasses import dataclass

from django.core.mail import send_mail
from django.utils import timezone

from django_delayq import Bury, Message, delay_execute
from example_project.shop import sms
from example_project.shop.models import Departure, Order, Reminder, Store
from example_project.shop.runs import recorded

log = logging.getLogger(__name__)


@delay_execute(key="order.close", max_attempts=5)
@recorded
def close_order(message: Message[int]) -> None:
    """Close an order that is still unpaid."""
    Order.objects.filter(pk=message.data, state=Order.State.OPEN).update(state=Order.State.CLOSED)


@dataclass
class Remind:
    """The data of a reminder: which order, and whether it is the first, second or third."""

    order: int
    number: int


@delay_execute(key="order.remind")
@recorded
def remind_customer(message: Message[Remind]) -> None:
    """Remind a customer of an order that was never paid."""
    order = Order.objects.exclude(state=Order.State.PAID).filter(pk=message.data.order).first()
    if order is None:
        return
    _, is_new = Reminder.objects.get_or_create(order=order, number=message.data.number)
    if is_new:
        send_mail("Your order", f"Do you still want order {order.pk}?", None, [order.email])


@delay_execute(key="store.text", backoff=["1s", "1m", "10m"])
@recorded
def text_store(message: Message[int]) -> None:
    """Send a text to a store that still has no products."""
    store = Store.objects.filter(pk=message.data, products=None, texted_at=None).first()
    if store is None:
        return
    try:
        sms.send(store.phone, f"{store.name} has no products yet. Can we help?", attempt=message.attempt)
    except sms.NoSuchNumber as error:
        raise Bury(str(error)) from error
    store.texted_at = timezone.now()
    store.save(update_fields=["texted_at"])


@delay_execute(key="departure.close-checkin")
@recorded
def close_checkin(message: Message[int]) -> None:
    """Close the check-in of a departure."""
    Departure.objects.filter(pk=message.data, checkin_closed_at=None).update(checkin_closed_at=timezone.now())


@dataclass
class Flight:
    """The data of an announcement."""

    carrier: str
    flight: str
    origin: str
    dest: str


@delay_execute(key="departure.announce")
def announce_departure(message: Message[Flight]) -> None:
    """Announce that a flight leaves now. Spark sends a month of these messages: see `make spark-demo`."""
    log.debug("%s%s leaves %s", message.data.carrier, message.data.flight, message.data.origin)
