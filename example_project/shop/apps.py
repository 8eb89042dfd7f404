"""The shop as a Django app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The config of the shop. It does nothing, because django_delayq finds `shop/delayed.py` by itself."""

    name = "example_project.shop"
