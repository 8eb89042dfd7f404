"""Show the store's tables in Django's admin, and let operators act on messages.

Importing this package registers the lists with Django's default site. Call `register(site)` for another `AdminSite`.
"""

from django.contrib.admin import AdminSite, site as default_site

from django_delayq.admin.lists.admins import ErrorMessageAdmin, FinishMessageAdmin, ReadyMessageAdmin, ReportRowAdmin
from django_delayq.admin.lists.bulk_actions import ActionRowAdmin
from django_delayq.admin.lists.messages import AnyMessageAdmin
from django_delayq.admin.schedules.admin import ScheduleAdmin
from django_delayq.models import ActionRow, AnyMessage, ErrorMessage, FinishMessage, ReadyMessage, ReportRow, Schedule


def register(site: AdminSite) -> None:
    """Register the page of all messages, their three lists, the report, the schedules and the bulk actions."""
    site.register(AnyMessage, AnyMessageAdmin)
    site.register(ReadyMessage, ReadyMessageAdmin)
    site.register(FinishMessage, FinishMessageAdmin)
    site.register(ErrorMessage, ErrorMessageAdmin)
    site.register(ReportRow, ReportRowAdmin)
    site.register(Schedule, ScheduleAdmin)
    site.register(ActionRow, ActionRowAdmin)


register(default_site)
