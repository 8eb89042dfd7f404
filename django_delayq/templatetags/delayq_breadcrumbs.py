"""`{% delayq_breadcrumbs %}`: the breadcrumbs of a page of the admin, in the markup of the installed Django."""

import django
from django import template
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

register = template.Library()


@register.simple_tag
def delayq_breadcrumbs(title: object, *steps: object) -> SafeString:
    """Return the breadcrumbs from the admin's index to the page `title`.

    `steps` has the address and the text of each page between them, one after the other. Django 6.1 shows breadcrumbs as
    a list, whose items need white space between them; earlier versions have links with arrows between them.
    """
    pairs = [(reverse("admin:index"), gettext("Home")), *zip(steps[::2], steps[1::2], strict=True)]
    if django.VERSION >= (6, 1):
        links = format_html_join("", '<li><a href="{}">{}</a></li>\n', pairs)
        return format_html('<ol class="breadcrumbs">{}<li aria-current="page">{}</li></ol>', links, title)
    links = format_html_join("", '<a href="{}">{}</a> &rsaquo; ', pairs)
    return format_html('<div class="breadcrumbs">{}{}</div>', links, title)
