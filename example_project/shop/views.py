"""The shop's pages."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from django_delayq import State, get_delay_message
from example_project.shop import exports, orders, search, stores
from example_project.shop.delayed import dunning
from example_project.shop.forms import CatalogueForm, ExportForm, OrderForm, ProductForm, StoreForm
from example_project.shop.models import Departure, Export, Order, Product, Run, Store

OVER = (State.FINISHED, State.CANCELLED)


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Show the latest orders, stores, exports and runs."""
    context = {
        "orders": Order.objects.prefetch_related("reminders").order_by("-pk")[:10],
        "stores": Store.objects.prefetch_related("products", "catalogues").order_by("-pk")[:10],
        "departures": Departure.objects.count(),
        "closed_departures": Departure.objects.exclude(checkin_closed_at=None).count(),
        "exports": [(export, exports.message_of(export)) for export in Export.objects.order_by("-pk")[:5]],
        "runs": Run.objects.order_by("-pk")[:15],
        "order_form": OrderForm(),
        "store_form": StoreForm(),
        "product_form": ProductForm(),
        "catalogue_form": CatalogueForm(),
        "export_form": ExportForm(),
    }
    return render(request, "shop/index.html", context)


@require_safe
def order_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show an order, its messages that wait, run or have failed, and its runs."""
    order = get_object_or_404(Order, pk=pk)
    ids = orders.message_ids(order)
    context = {
        "order": order,
        "dunning": dunning.get(orders.dunning_id(order)),
        "messages": [message for message in map(get_delay_message, ids) if message and message.state not in OVER],
        "runs": Run.objects.filter(message_id__in=ids).order_by("pk"),
    }
    return render(request, "shop/order.html", context)


@require_POST
def open_order(request: HttpRequest) -> HttpResponse:
    form = OrderForm(request.POST)
    if not form.is_valid():
        return render(request, "shop/wrong.html", {"form": form}, status=400)
    return redirect("shop:order", pk=orders.open_order(form.cleaned_data["email"]).pk)


@require_POST
def pay_order(request: HttpRequest, pk: int) -> HttpResponse:
    order = get_object_or_404(Order, pk=pk)
    orders.pay_order(order)
    return redirect("shop:order", pk=pk)


@require_POST
def open_store(request: HttpRequest) -> HttpResponse:
    form = StoreForm(request.POST)
    if not form.is_valid():
        return render(request, "shop/wrong.html", {"form": form}, status=400)
    stores.open_store(form.cleaned_data["name"], form.cleaned_data["phone"])
    return redirect("shop:index")


@require_POST
def add_product(request: HttpRequest, pk: int) -> HttpResponse:
    store = get_object_or_404(Store, pk=pk)
    form = ProductForm(request.POST)
    if not form.is_valid():
        return render(request, "shop/wrong.html", {"form": form}, status=400)
    stores.add_product(store, form.cleaned_data["name"])
    return redirect("shop:index")


@require_POST
def import_catalogue(request: HttpRequest, pk: int) -> HttpResponse:
    store = get_object_or_404(Store, pk=pk)
    form = CatalogueForm(request.POST)
    if not form.is_valid():
        return render(request, "shop/wrong.html", {"form": form}, status=400)
    stores.import_catalogue(store, form.cleaned_data["names"].splitlines())
    return redirect("shop:index")


@require_safe
def search_products(request: HttpRequest) -> HttpResponse:
    """Show the products that the search finds."""
    text = request.GET.get("q", "")
    return render(request, "shop/search.html", {"text": text, "documents": search.find(text)[:50]})


@require_POST
def rename_product(request: HttpRequest, pk: int) -> HttpResponse:
    product = get_object_or_404(Product, pk=pk)
    form = ProductForm(request.POST)
    if not form.is_valid():
        return render(request, "shop/wrong.html", {"form": form}, status=400)
    stores.rename_product(product, form.cleaned_data["name"])
    return redirect("shop:search")


@require_POST
def ask_for_export(request: HttpRequest) -> HttpResponse:
    form = ExportForm(request.POST)
    if not form.is_valid():
        return render(request, "shop/wrong.html", {"form": form}, status=400)
    exports.ask_for_export(form.cleaned_data["origin"])
    return redirect("shop:index")


@require_POST
def cancel_export(request: HttpRequest, pk: int) -> HttpResponse:
    exports.cancel_export(get_object_or_404(Export, pk=pk), by="a visitor")
    return redirect("shop:index")
