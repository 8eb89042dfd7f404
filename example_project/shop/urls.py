"""The shop's pages: some to look at, the others to change something and return to one of those."""

from django.urls import path

from example_project.shop import views

app_name = "shop"
urlpatterns = [
    path("", views.index, name="index"),
    path("orders/", views.open_order, name="open-order"),
    path("orders/<int:pk>/", views.order_detail, name="order"),
    path("orders/<int:pk>/pay/", views.pay_order, name="pay-order"),
    path("stores/", views.open_store, name="open-store"),
    path("stores/<int:pk>/products/", views.add_product, name="add-product"),
]
