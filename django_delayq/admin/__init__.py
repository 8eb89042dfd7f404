"""The admin of the store's tables: for looking, and for the moves of an operator.

Importing it registers with Django's default site; `register(site)` does with another `AdminSite`.
"""

from django.contrib.admin import AdminSite, site as default_site

from django_delayq.admin.lists.admins import ErrorMessageAdmin, FinishMessageAdmin, ReadyMessageAdmin, ReportRowAdmin
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, ReportRow


def register(site: AdminSite) -> None:
    """Show the messages, and the report, on `site`."""
    site.register(ReadyMessage, ReadyMessageAdmin)
    site.register(FinishMessage, FinishMessageAdmin)
    site.register(ErrorMessage, ErrorMessageAdmin)
    site.register(ReportRow, ReportRowAdmin)


register(default_site)
