"""The admin, as a site has it. The tests have the same, but a worker that checks their addresses imports pytest."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
