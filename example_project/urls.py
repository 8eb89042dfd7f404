"""The pages of the example: the shop's, and the admin."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("", include("example_project.shop.urls"))]
