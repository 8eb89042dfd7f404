"""`{{ text|visible }}`: text from outside, with escapes for characters that hide or reorder it."""

from typing import Any

from django import template

from django_delayq.admin.formatting import visible as as_visible

register = template.Library()


@register.filter
def visible(value: Any) -> str:
    """Return the text of a value as `formatting.visible` shows it."""
    return "" if value is None else as_visible(str(value))
