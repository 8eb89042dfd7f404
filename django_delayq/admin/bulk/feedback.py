"""Tell an operator after a move how many messages moved, and which were left, and why."""

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.utils.translation import ngettext

from django_delayq.admin.formatting import some


def tell_moved(request: HttpRequest, done: Any, count: int) -> None:
    """Say how many messages moved, if any did."""
    if count:
        said = ngettext("%(done)s: %(count)d message.", "%(done)s: %(count)d messages.", count)
        messages.success(request, said % {"done": done, "count": count})


def tell_left(request: HttpRequest, ids: Sequence[str], gone: int) -> None:
    """Say which messages were not moved: those of `ids`, and `gone` more that were in another table already."""
    count = len(ids) + gone
    if count:
        said = ngettext(
            "%(count)d message was left: it runs, has moved on, or its id waits again.",
            "%(count)d messages were left: they run, have moved on, or their ids wait again.",
            count,
        )
        messages.warning(request, _with_names(said % {"count": count}, ids))


def tell_changed(request: HttpRequest, ids: Sequence[str]) -> None:
    """Say which messages were left because they had changed since the question."""
    if ids:
        said = ngettext(
            "%(count)d message was left: it has changed since you were asked. Look at it again.",
            "%(count)d messages were left: they have changed since you were asked. Look at them again.",
            len(ids),
        )
        messages.warning(request, _with_names(said % {"count": len(ids)}, ids))


def _with_names(said: str, ids: Sequence[str]) -> str:
    return f"{said} ({some(ids)})" if ids else said
