"""The shop as a Django app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Nothing to do here: django_delayq finds `shop/delayed.py` by itself."""

    name = "example_project.shop"
