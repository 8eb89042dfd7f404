"""The last report of the pipeline on Spark, shown as rows without Spark."""

from typing import Any

from django.contrib import admin
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from django_delayq.admin.lists.bounded import BoundedAdmin
from django_delayq.admin.lists.columns import instant
from django_delayq.admin.lists.filters import AliasFilter, KeyFilter, QueueFilter
from django_delayq.admin.outage_redirect import redirected_on_outage
from django_delayq.models import ReportRow
from django_delayq.support.units import to_text


@admin.display(description=gettext_lazy("hour"))
def hour(row: ReportRow) -> str | SafeString:
    """Return when the hour began."""
    return instant(row.hour)


@admin.display(description=gettext_lazy("failed"))
def failed(row: ReportRow) -> str:
    """Return how many failed for good."""
    return _share(row.failed, row)


@admin.display(description=gettext_lazy("retried"))
def retried(row: ReportRow) -> str:
    """Return how many had failed attempts before the last."""
    return _share(row.retried, row)


@admin.display(description=gettext_lazy("late by (50, 95, 99 %)"))
def lateness(row: ReportRow) -> str:
    """Return how late the messages were at most: half of them, 95 %, and 99 %."""
    return _times(row.lateness_p50, row.lateness_p95, row.lateness_p99)


@admin.display(description=gettext_lazy("took (50, 95, 99 %)"))
def duration(row: ReportRow) -> str:
    """Return how long the messages took at most: half of them, 95 %, and 99 %."""
    return _times(row.duration_p50, row.duration_p95, row.duration_p99)


@admin.display(description=gettext_lazy("most frequent kind of failure"), empty_value="-")
def fingerprint(row: ReportRow) -> Any:
    """Return the most frequent kind of failure."""
    return row.fingerprint or None


def _share(count: int, row: ReportRow) -> str:
    return f"{count} ({100 * count / row.messages:.1f} %)" if count else "0"


def _times(*quantiles: int | None) -> str:
    return " / ".join(to_text(max(each, 0)) for each in quantiles if each is not None) or "-"


class ReportRowAdmin(BoundedAdmin):
    """The messages that ended in each hour, by key and queue, newest first.

    There is only the list, no page of a row.
    """

    actions = None
    ordering = ("-hour", "queue", "key")
    list_display = (
        hour,
        "queue",
        "key",
        "messages",
        failed,
        "cancelled",
        retried,
        lateness,
        duration,
        fingerprint,
    )
    list_display_links = None
    list_filter = (AliasFilter, QueueFilter, KeyFilter)

    changelist_view = redirected_on_outage(BoundedAdmin.changelist_view)

    def get_urls(self) -> list[URLPattern]:
        return [path("", self.admin_site.admin_view(self.changelist_view), name="delayq_reportrow_changelist")]
