"""The admin of the store's tables: for looking, and for the moves of an operator.

Importing it registers with Django's default site; `register(site)` does with another `AdminSite`.
"""

from django.contrib.admin import AdminSite, site as default_site

from django_delayq.admin.lists import ErrorMessageAdmin, FinishMessageAdmin, ReadyMessageAdmin
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage


def register(site: AdminSite) -> None:
    """Show the messages on `site`."""
    site.register(ReadyMessage, ReadyMessageAdmin)
    site.register(FinishMessage, FinishMessageAdmin)
    site.register(ErrorMessage, ErrorMessageAdmin)


register(default_site)
