"""The last report of the pipeline on Spark, as rows: shown without Spark."""

from typing import Any

from django.contrib import admin
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from django_delayq.admin.away import told_when_away
from django_delayq.admin.bounded import BoundedAdmin
from django_delayq.admin.columns import instant
from django_delayq.admin.filters import AliasFilter, KeyFilter, QueueFilter
from django_delayq.models import ReportRow
from django_delayq.support.units import to_text


@admin.display(description=gettext_lazy("hour"))
def hour(row: ReportRow) -> str | SafeString:
    """When the hour began."""
    return instant(row.hour)


@admin.display(description=gettext_lazy("failed"))
def failed(row: ReportRow) -> str:
    """How many failed for good."""
    return _share(row.failed, row)


@admin.display(description=gettext_lazy("retried"))
def retried(row: ReportRow) -> str:
    """How many had attempts that failed before the last."""
    return _share(row.retried, row)


@admin.display(description=gettext_lazy("late by (50, 95, 99 %)"))
def lateness(row: ReportRow) -> str:
    """By how much half of them, 95 and 99 of 100 were late at most."""
    return _times(row.lateness_p50, row.lateness_p95, row.lateness_p99)


@admin.display(description=gettext_lazy("took (50, 95, 99 %)"))
def duration(row: ReportRow) -> str:
    """How long half of them, 95 and 99 of 100 took at most."""
    return _times(row.duration_p50, row.duration_p95, row.duration_p99)


@admin.display(description=gettext_lazy("most frequent kind of failure"), empty_value="-")
def fingerprint(row: ReportRow) -> Any:
    """The kind of failure that most of the failed had."""
    return row.fingerprint or None


def _share(count: int, row: ReportRow) -> str:
    return f"{count} ({100 * count / row.messages:.1f} %)" if count else "0"


def _times(*quantiles: int | None) -> str:
    return " / ".join(to_text(max(each, 0)) for each in quantiles if each is not None) or "-"


class ReportRowAdmin(BoundedAdmin):
    """What ended in each hour, of each key in each queue, newest first. There is a list, and no page of one row."""

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

    changelist_view = told_when_away(BoundedAdmin.changelist_view)

    def get_urls(self) -> list[URLPattern]:
        return [path("", self.admin_site.admin_view(self.changelist_view), name="delayq_reportrow_changelist")]
