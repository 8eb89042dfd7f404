"""Open stores, give them products and rename these, and text a store that has none."""

from collections.abc import Sequence

from django.conf import settings
from django.db import transaction
from django.db.models import F

from django_delayq import Batch, Send, cancel_delay_messages
from example_project.shop.delayed import Row, add_from_catalogue, index_soon, note_catalogue, text_store
from example_project.shop.models import Catalogue, Product, Store


def open_store(name: str, phone: str) -> Store:
    """Save a new store, and send the message that texts it if it has no products by its due time."""
    with transaction.atomic():
        store = Store.objects.create(name=name, phone=phone)
        text_store.send(store.pk, delay=settings.SHOP_TEXT_AFTER, id=text_id(store))
    return store


def add_product(store: Store, name: str) -> int:
    """Give a store a product, and stop its text. Return how many messages were stopped in time."""
    with transaction.atomic():
        product = Product.objects.create(store=store, name=name)
        index_soon(product.pk)
        return cancel_delay_messages(text_id(store))


def rename_product(product: Product, name: str) -> None:
    """Give a product another name, and have the search know it soon."""
    with transaction.atomic():
        Product.objects.filter(pk=product.pk).update(name=name, version=F("version") + 1)
        index_soon(product.pk)


def import_catalogue(store: Store, names: Sequence[str]) -> Catalogue:
    """Have a product added for each of the names, each by a message, and the catalogue told once all have ended."""
    with Batch(note_catalogue.key) as batch:
        catalogue = Catalogue.objects.create(store=store, batch_id=batch.id, rows=len(names))
        batch.send_many(Send(add_from_catalogue.key, Row(store.pk, name)) for name in names)
    return catalogue


def text_id(store: Store) -> str:
    return f"store:{store.pk}:text"
