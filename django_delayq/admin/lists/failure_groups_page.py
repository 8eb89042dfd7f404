"""The page of failed messages by kind, each with a sparkline and a way to run all of them again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from django_delayq.admin.aliases import alias_of, query_of
from django_delayq.admin.formatting import listed, number
from django_delayq.admin.lists.columns import instant
from django_delayq.admin.lists.conditions import now_utc
from django_delayq.admin.lists.failure_groups import HOURS, groups
from django_delayq.admin.outage_redirect import redirected_on_outage

HEIGHT = 24
BAR = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour of a sparkline, in the units of its drawing."""

    x: int
    y: int
    height: int


@redirected_on_outage
def groups_page(admin: Any, request: HttpRequest) -> HttpResponse:
    """Render the groups of the alias that the address names."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    alias = alias_of(request)
    found, is_cut = groups(alias, now_utc())
    changelist = reverse("admin:delayq_errormessage_changelist", current_app=admin.admin_site.name)
    shown = [
        {
            "group": group,
            "number": number(group.count, capped=group.is_more),
            "counts": listed(map(str, group.by_hour)),
            "first": instant(group.first),
            "last": instant(group.last),
            "bars": bars(group.by_hour),
            "address": changelist + query_of(alias, fingerprint=group.fingerprint),
        }
        for group in found
    ]
    context = {
        **admin.admin_site.each_context(request),
        "title": _("Failed messages by kind"),
        "opts": admin.opts,
        "media": admin.media,
        "groups": shown,
        "most": len(found) if is_cut else None,
        "list_address": changelist + query_of(alias),
        "width": HOURS * BAR,
        "height": HEIGHT,
        "bar": BAR - 1,
        "may_rescue": admin.has_rescue_permission(request),
    }
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, "admin/delayq/groups.html", context)


def bars(by_hour: Sequence[int]) -> list[Bar]:
    """Return a bar for each hour with failures.

    The highest is as high as the drawing, and the lowest can still be seen.
    """
    most = max(by_hour, default=0)
    heights = [0 if not count else max(2, round(count / most * HEIGHT)) for count in by_hour]
    return [Bar(hour * BAR, HEIGHT - height, height) for hour, height in enumerate(heights) if height]
