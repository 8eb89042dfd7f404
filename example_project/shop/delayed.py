"""The work that the shop does later. django_delayq finds this file by its name.

A message can run twice if its worker was killed, so each handler looks first whether its work is still to be done.
"""

import logging
import time
from dataclasses import dataclass

from django.conf import settings
from django.core.mail import send_mail
from django.db import transaction
from django.utils import timezone

from django_delayq import BatchDone, Bury, Message, Sequence, Step, delay_execute
from example_project.shop import search, sms
from example_project.shop.models import Catalogue, Departure, Export, Order, Product, Reminder, Store
from example_project.shop.runs import recorded, recorded_many

log = logging.getLogger(__name__)


@delay_execute(key="order.close", max_attempts=5)
@recorded
def close_order(message: Message[int]) -> None:
    """Close an order that is still unpaid."""
    Order.objects.filter(pk=message.data, state=Order.State.OPEN).update(state=Order.State.CLOSED)


@delay_execute(key="order.remind")
@recorded
def remind_customer(message: Message[int]) -> None:
    """Remind a customer of an order that was never paid."""
    order = Order.objects.exclude(state=Order.State.PAID).filter(pk=message.data).first()
    if order is None:
        return
    _, is_new = Reminder.objects.get_or_create(message_id=message.id, defaults={"order": order})
    if is_new:
        send_mail("Your order", f"Do you still want order {order.pk}?", None, [order.email])


dunning = Sequence("dunning", [Step(remind_customer.key, after=after) for after in settings.SHOP_REMIND_AFTER])
"""The reminders of an order, one after another, until it is paid."""


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


@delay_execute(key="search.index", batch=100, wait="200ms")
@recorded_many
def index_products(messages: list[Message[int]]) -> None:
    """Tell the search what has become of products, of many in one call."""
    search.put(Product.objects.filter(pk__in=[message.data for message in messages]))


def index_soon(product_id: int) -> None:
    """Have a product indexed once it has settled down. Call it in the transaction that changes the product."""
    index_products.send(
        product_id,
        id=f"product:{product_id}:index",
        delay=settings.SHOP_INDEX_AFTER,
        on_conflict="replace",
        max_wait=settings.SHOP_INDEX_WITHIN,
        while_running="again",  # the run may have read the product already
    )


@dataclass
class Row:
    """The data of a row of a catalogue."""

    store: int
    name: str


@delay_execute(key="catalogue.add")
@recorded
def add_from_catalogue(message: Message[Row]) -> None:
    """Add a product that a store does not have yet."""
    if not message.data.name:
        raise Bury("the row has no name")
    with transaction.atomic():
        product, is_new = Product.objects.get_or_create(store_id=message.data.store, name=message.data.name)
        if is_new:
            index_soon(product.pk)


@delay_execute(key="catalogue.done")
@recorded
def note_catalogue(message: Message[BatchDone]) -> None:
    """Write down what became of the rows of a catalogue."""
    done = message.data
    Catalogue.objects.filter(batch_id=done.batch).update(added=done.finished, failed=done.failed)


@delay_execute(key="departures.export")
@recorded
def export_departures(message: Message[int]) -> None:
    """Write a list of departures. It takes long, so it says how far it is, and stops if somebody cancels it."""
    export = Export.objects.get(pk=message.data)
    departures = Departure.objects.filter(origin__startswith=export.origin).order_by("departs_at", "pk")
    lines: list[str] = []
    for departure in departures:
        message.ensure_not_cancelled()
        message.progress(len(lines) / len(departures), f"{len(lines)} of {len(departures)}")
        time.sleep(settings.SHOP_EXPORT_TAKES.total_seconds())
        lines.append(f"{departure.departs_at:%H:%M} {departure}")
    export.lines, export.written_at = "\n".join(lines), timezone.now()
    export.save()


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
