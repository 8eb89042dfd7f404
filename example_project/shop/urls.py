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
    path("stores/<int:pk>/catalogues/", views.import_catalogue, name="import-catalogue"),
    path("products/", views.search_products, name="search"),
    path("products/<int:pk>/rename/", views.rename_product, name="rename-product"),
    path("exports/", views.ask_for_export, name="ask-for-export"),
    path("exports/<int:pk>/cancel/", views.cancel_export, name="cancel-export"),
]
