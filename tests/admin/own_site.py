"""A site whose admin is an `AdminSite` of its own, with one of the lists."""

from django.contrib.admin import AdminSite
from django.urls import path

from django_delayq.admin.lists.admins import ErrorMessageAdmin
from django_delayq.models import ErrorMessage

site = AdminSite("ops")
site.register(ErrorMessage, ErrorMessageAdmin)
urlpatterns = [path("ops/", site.urls)]
