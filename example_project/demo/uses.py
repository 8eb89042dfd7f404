"""Compare what the shop made of its messages with the tables of delayq."""

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count, F, Sum

from django_delayq.models import ErrorMessage, FinishMessage
from example_project.shop.delayed import (
    add_from_catalogue,
    dunning,
    export_departures,
    index_products,
    note_catalogue,
    remind_customer,
)
from example_project.shop.models import Catalogue, Departure, Export, Order, Product, Run

FINISHED, CANCELLED = FinishMessage.Outcome.FINISHED, FinishMessage.Outcome.CANCELLED


@dataclass(frozen=True)
class Use:
    """What became of one use of delayed messages, in words, and whether it adds up."""

    name: str
    says: str
    adds_up: bool


def uses() -> Iterator[Use]:
    """Yield the uses, each counted from the tables as they are now."""
    yield from (search_use(), dunning_use(), catalogue_use(), export_use())


def search_use() -> Use:
    """Compare the changes of products with the messages, the calls, and what the search knows."""
    changes = Product.objects.aggregate(all=Sum("version"))["all"] or 0
    messages = ended(index_products.key, FINISHED)
    calls = Run.objects.filter(key=index_products.key).values("worker_pid", "started_at").distinct().count()
    stale = Product.objects.exclude(document__version=F("version")).count()
    says = (
        f"{changes} changes of {Product.objects.count()} products: {changes - messages} were merged, and {messages} "
        f"messages ran in {calls} calls; stale in the end: {stale}"
    )
    return Use("search", says, stale == 0 and calls <= messages <= changes)


def dunning_use() -> Use:
    """Compare the orders with the reminders that were sent, and the sequences that were stopped."""
    unpaid = Order.objects.exclude(state=Order.State.PAID).annotate(sent=Count("reminders"))
    paid = Order.objects.filter(state=Order.State.PAID).annotate(sent=Count("reminders"))
    reminded = unpaid.filter(sent=len(dunning.steps)).count()
    finished, stopped = ended(remind_customer.key, FINISHED), ended(remind_customer.key, CANCELLED)
    after_payment = paid.filter(sent__gt=0).count()
    says = (
        f"{reminded} of {unpaid.count()} unpaid orders got all {len(dunning.steps)} reminders; {stopped} of "
        f"{paid.count()} paid ones were stopped; reminded all the same: {after_payment}"
    )
    adds_up = reminded == unpaid.count() and finished == reminded * len(dunning.steps)
    return Use("dunning", says, adds_up and stopped == paid.count() and after_payment == 0)


def catalogue_use() -> Use:
    """Compare what the messages after the catalogues were told with how their rows ended, and with the products."""
    told = Catalogue.objects.aggregate(rows=Sum("rows"), added=Sum("added"), failed=Sum("failed"))
    finished = ended(add_from_catalogue.key, FINISHED)
    failed = ErrorMessage.objects.filter(key=add_from_catalogue.key).count()
    products = Product.objects.exclude(store__catalogues=None).count()
    says = (
        f"{told['rows']} rows, sent as {Catalogue.objects.count()} batch: {told['added']} added and {told['failed']} "
        f"failed, says the message that followed; there are {products} products"
    )
    adds_up = (told["added"], told["failed"]) == (finished, failed) and told["rows"] == finished + failed
    once = ended(note_catalogue.key, FINISHED) == Catalogue.objects.count()
    return Use("catalogue", says, adds_up and once and products == finished)


def export_use() -> Use:
    """Compare what was asked for with what was written, and what was cancelled while it ran."""
    written = Export.objects.exclude(written_at=None)
    cancelled = ended(export_departures.key, CANCELLED)
    lines = sum(len(export.lines.splitlines()) for export in written)
    departures = sum(Departure.objects.filter(origin__startswith=export.origin).count() for export in written)
    left_over = Export.objects.filter(written_at=None).exclude(lines="").count()
    says = (
        f"{Export.objects.count()} asked for: {written.count()} written, with {lines} of {departures} departures, "
        f"and {cancelled} cancelled amid its run"
    )
    adds_up = Export.objects.count() == written.count() + cancelled
    return Use("export", says, adds_up and lines == departures and left_over == 0)


def ended(key: str, outcome: str) -> int:
    """Return how many messages of a key have ended so."""
    return FinishMessage.objects.filter(key=key, outcome=outcome).count()
