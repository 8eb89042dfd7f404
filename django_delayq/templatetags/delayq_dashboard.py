"""`{% delayq_dashboard %}`: the dashboard, in a template of any `AdminSite`."""

from typing import Any

from django import template
from django.template import Context

from django_delayq.admin.access import site_of

register = template.Library()


@register.inclusion_tag("admin/delayq/dashboard.html", takes_context=True)
def delayq_dashboard(context: Context) -> dict[str, Any]:
    """Return the context of the dashboard, for the alias that the address names and the user of the request.

    It is empty for a user who may see none of the lists.
    """
    from django_delayq.admin.dashboard.page import page_context  # late: a check imports all tags

    request = context["request"]
    return page_context(request) if site_of(request).get_app_list(request, "delayq") else {}
