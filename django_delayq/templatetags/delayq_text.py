"""Show text from outside with escapes for characters that hide or reorder it: `{{ text|visible }}`."""

from typing import Any

from django import template

from django_delayq.admin.formatting import queue_words as as_queue_words, visible as as_visible

register = template.Library()


@register.filter
def visible(value: Any) -> str:
    """Return the text of a value as `formatting.visible` shows it."""
    return "" if value is None else as_visible(str(value))


@register.filter
def queue_words(lane: str) -> str:
    """Return the queue of a lane, and its priority, as `formatting.queue_words` shows them."""
    return as_visible(as_queue_words(lane))
