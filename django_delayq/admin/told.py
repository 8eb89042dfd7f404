"""What an operator is told after a move: how many moved, and which were left, and why."""

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.utils.translation import ngettext

from django_delayq.admin.words import some


def tell_moved(request: HttpRequest, done: Any, count: int) -> None:
    """That so many moved, if any."""
    if count:
        said = ngettext("%(done)s: %(count)d message.", "%(done)s: %(count)d messages.", count)
        messages.success(request, said % {"done": done, "count": count})


def tell_left(request: HttpRequest, ids: Sequence[str], gone: int) -> None:
    """Which were not moved: those of `ids`, and so many that were in another table already."""
    count = len(ids) + gone
    if count:
        said = ngettext(
            "%(count)d message was left: it runs, has moved on, or its id waits again.",
            "%(count)d messages were left: they run, have moved on, or their ids wait again.",
            count,
        )
        messages.warning(request, _with_names(said % {"count": count}, ids))


def tell_changed(request: HttpRequest, ids: Sequence[str]) -> None:
    """Which were not moved, since another has changed them."""
    if ids:
        said = ngettext(
            "%(count)d message was left: it has changed since you were asked. Look at it again.",
            "%(count)d messages were left: they have changed since you were asked. Look at them again.",
            len(ids),
        )
        messages.warning(request, _with_names(said % {"count": len(ids)}, ids))


def _with_names(said: str, ids: Sequence[str]) -> str:
    return f"{said} ({some(ids)})" if ids else said
