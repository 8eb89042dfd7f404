"""The pages of the example: all of them are the shop's."""

from django.urls import include, path

urlpatterns = [path("", include("example_project.shop.urls"))]
