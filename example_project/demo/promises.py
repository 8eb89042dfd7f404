"""Send the demo's messages, and note what it expects: the due time of each, and what was stopped in time."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate

from django.conf import settings
from django.utils import timezone

from django_delayq import Send, send_delay_messages
from django_delayq.core.batches import member_id
from example_project.demo.pace import shorten
from example_project.shop import exports, orders, stores
from example_project.shop.delayed import close_checkin
from example_project.shop.departures import checkin_id
from example_project.shop.models import Departure, Export, Store


@dataclass
class Promises:
    """The due time of each message that was sent, and for each group of cancelled ids how many were stopped.

    Messages to the search are not among them: a product has one id, which runs as often as the product settles down.
    """

    due: dict[str, datetime] = field(default_factory=dict)
    stopped: list[tuple[list[str], int]] = field(default_factory=list)


def send_departures(departures: Iterable[Departure], opening: datetime, start: datetime, promises: Promises) -> None:
    """Send the check-ins of a day: a check-in that closes at `opening` in the file closes at `start` on the clock."""
    sends = list(checkin_sends(departures, opening, start))
    send_delay_messages(sends)
    promises.due.update((send.id, send.at) for send in sends if send.id and isinstance(send.at, datetime))


def checkin_sends(departures: Iterable[Departure], opening: datetime, start: datetime) -> Iterator[Send]:
    """Yield the messages that close the check-in of `departures`, at the demo's pace."""
    for departure in departures:
        at = start + shorten(departure.checkin_closes_at - opening)
        yield close_checkin.prepare(departure.pk, at=at, id=checkin_id(departure))


def open_orders(count: int, *, paid_each: int, promises: Promises) -> None:
    """Open `count` orders, and pay each `paid_each`-th at once."""
    for number in range(1, count + 1):
        now = timezone.now()
        order = orders.open_order(f"customer{number}@example.com")
        delays = [settings.SHOP_CLOSE_AFTER, *accumulate(settings.SHOP_REMIND_AFTER)]
        ids = orders.message_ids(order)
        if number % paid_each == 0 and (stopped := orders.pay_order(order)):
            ids = ids[:2]  # of the reminders only the first was sent
            promises.stopped.append((ids, stopped))
        promises.due.update((id, now + delay) for id, delay in zip(ids, delays, strict=False))


def open_stores(phones: Iterable[str], *, with_products: int, promises: Promises) -> None:
    """Open a store for each phone, and give the first few of them a product."""
    for number, phone in enumerate(phones):
        now = timezone.now()
        store = stores.open_store(f"Store {number + 1}", phone)
        promises.due[stores.text_id(store)] = now + settings.SHOP_TEXT_AFTER
        if number < with_products:
            promises.stopped.append(([stores.text_id(store)], stores.add_product(store, "Tea")))


def change_products(names: Iterable[str], *, times: int) -> None:
    """Open a store that sells `names`, and rename each of its products again and again, too fast to be indexed."""
    store = Store.objects.create(name="The restless one", phone="+1 212 555 0100")
    for name in names:
        stores.add_product(store, name)
    products = list(store.products.all())
    for number in range(1, times + 1):
        time.sleep(settings.SHOP_INDEX_AFTER.total_seconds() / 2)
        for product in products:
            stores.rename_product(product, f"{product.name}, edition {number}")


def import_catalogue(names: Sequence[str], promises: Promises) -> None:
    """Open a store with a catalogue of `names`."""
    now = timezone.now()
    catalogue = stores.import_catalogue(Store.objects.create(name="The large one", phone="+1 212 555 0101"), names)
    members = [member_id(catalogue.batch_id, number) for number in range(1, len(names) + 1)]
    promises.due.update(dict.fromkeys([*members, catalogue.batch_id], now))


def export_departures(origin: str, promises: Promises) -> Export:
    """Ask for an export."""
    now = timezone.now()
    export = exports.ask_for_export(origin)
    promises.due[exports.export_id(export)] = now
    return export
