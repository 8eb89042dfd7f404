"""Open stores and give them products, and text a store that has none."""

from django.conf import settings
from django.db import transaction

from django_delayq import cancel_delay_messages
from example_project.shop.delayed import text_store
from example_project.shop.models import Product, Store


def open_store(name: str, phone: str) -> Store:
    """Save a new store, and send the message that texts it if it has no products by its due time."""
    with transaction.atomic():
        store = Store.objects.create(name=name, phone=phone)
        text_store.send(store.pk, delay=settings.SHOP_TEXT_AFTER, id=text_id(store))
    return store


def add_product(store: Store, name: str) -> int:
    """Give a store a product, and stop its text. Return how many messages were stopped in time."""
    Product.objects.create(store=store, name=name)
    return cancel_delay_messages(text_id(store))


def text_id(store: Store) -> str:
    return f"store:{store.pk}:text"
