"""`{% delayq_breadcrumbs %}`: the way to a page of the admin, in the markup of the Django that is installed."""

import django
from django import template
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

register = template.Library()


@register.simple_tag
def delayq_breadcrumbs(title: object, *steps: object) -> SafeString:
    """Return the links from the admin's index to a page: `steps` are an address and its text in turn, `title` the end.

    Django 6.1 has a list where the versions before it have lines with arrows.
    """
    pairs = [(reverse("admin:index"), gettext("Home")), *zip(steps[::2], steps[1::2], strict=True)]
    if django.VERSION >= (6, 1):
        links = format_html_join("", '<li><a href="{}">{}</a></li>', pairs)
        return format_html('<ol class="breadcrumbs">{}<li aria-current="page">{}</li></ol>', links, title)
    links = format_html_join("", '<a href="{}">{}</a> &rsaquo; ', pairs)
    return format_html('<div class="breadcrumbs">{}{}</div>', links, title)
