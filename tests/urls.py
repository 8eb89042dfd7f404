"""The suite serves no pages of its own."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
