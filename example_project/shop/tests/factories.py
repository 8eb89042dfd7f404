"""Rows for tests. They send no messages; `orders.open_order` and its like do."""

from datetime import UTC, datetime

from factory.declarations import Sequence, SubFactory
from factory.django import DjangoModelFactory

from example_project.shop.models import Departure, Order, Product, Store


class OrderFactory(DjangoModelFactory[Order]):
    class Meta:
        model = Order

    email = Sequence(lambda number: f"customer{number}@example.com")


class StoreFactory(DjangoModelFactory[Store]):
    class Meta:
        model = Store

    name = Sequence(lambda number: f"Store {number}")
    phone = "+1 212 555 0123"


class ProductFactory(DjangoModelFactory[Product]):
    class Meta:
        model = Product

    store = SubFactory(StoreFactory)
    name = "Tea"


class DepartureFactory(DjangoModelFactory[Departure]):
    class Meta:
        model = Departure

    flight = Sequence(lambda number: f"UA{number}")
    origin = "EWR"
    dest = "IAH"
    departs_at = datetime(2013, 11, 3, 12, tzinfo=UTC)
