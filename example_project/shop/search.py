"""A search for products, which is a table here and takes its time like real ones."""

import time
from collections.abc import Iterable

from django.conf import settings
from django.db.models import QuerySet

from example_project.shop.models import Product, SearchDocument


def put(products: Iterable[Product]) -> None:
    """Write the documents of `products`, as they are when this is called."""
    documents = [SearchDocument(product=product, text=product.name, version=product.version) for product in products]
    time.sleep(settings.SHOP_SEARCH_TAKES.total_seconds())
    SearchDocument.objects.bulk_create(
        documents, update_conflicts=True, unique_fields=["product"], update_fields=["text", "version"]
    )


def find(text: str) -> QuerySet[SearchDocument]:
    """Return the documents that contain `text`."""
    return SearchDocument.objects.filter(text__icontains=text).select_related("product__store").order_by("text")
