"""The addresses of a site whose admin shows of the tables only the failed messages."""

from django.contrib import admin
from django.urls import path

from django_delayq.admin import register
from django_delayq.models import FinishMessage, ReadyMessage

few = admin.AdminSite("few")
register(few)
few.unregister([ReadyMessage, FinishMessage])
urlpatterns = [path("few/", few.urls)]
