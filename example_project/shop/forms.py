"""The forms that a visitor fills in."""

from django.forms import modelform_factory

from example_project.shop.models import Order, Product, Store

OrderForm = modelform_factory(Order, fields=["email"])
StoreForm = modelform_factory(Store, fields=["name", "phone"])
ProductForm = modelform_factory(Product, fields=["name"])
