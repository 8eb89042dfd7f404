"""Send the demo's messages, and note what it expects: the due time of each, and what was stopped in time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.utils import timezone

from django_delayq import Send, send_delay_messages
from example_project.demo.pace import shorten
from example_project.shop import orders, stores
from example_project.shop.delayed import close_checkin
from example_project.shop.departures import checkin_id
from example_project.shop.models import Departure


@dataclass
class Promises:
    """The due time of each message that was sent, and for each group of cancelled ids how many were stopped."""

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
        delays = [settings.SHOP_CLOSE_AFTER, *settings.SHOP_REMIND_AFTER]
        ids = orders.message_ids(order)
        promises.due.update((id, now + delay) for id, delay in zip(ids, delays, strict=True))
        if number % paid_each == 0:
            promises.stopped.append((ids, orders.pay_order(order)))


def open_stores(phones: Iterable[str], *, with_products: int, promises: Promises) -> None:
    """Open a store for each phone, and give the first few of them a product."""
    for number, phone in enumerate(phones):
        now = timezone.now()
        store = stores.open_store(f"Store {number + 1}", phone)
        promises.due[stores.text_id(store)] = now + settings.SHOP_TEXT_AFTER
        if number < with_products:
            promises.stopped.append(([stores.text_id(store)], stores.add_product(store, "Tea")))
