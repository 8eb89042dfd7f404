"""The forms that a visitor fills in."""

from django import forms
from django.forms import modelform_factory

from example_project.shop.models import Export, Order, Product, Store

OrderForm = modelform_factory(Order, fields=["email"])
StoreForm = modelform_factory(Store, fields=["name", "phone"])
ProductForm = modelform_factory(Product, fields=["name"])
ExportForm = modelform_factory(Export, fields=["origin"])


class CatalogueForm(forms.Form):
    """The names of many products, one a line."""

    names = forms.CharField(widget=forms.Textarea(attrs={"rows": 2}))
