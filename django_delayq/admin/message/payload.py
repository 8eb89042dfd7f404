"""The payload of a message as a viewer may see it: pretty, masked by the site's hook, or not at all."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from django_delayq.conf import alias_names, get_alias
from django_delayq.core.codec import loads
from django_delayq.models import MessageRow

INDENT = 2
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # they show text in another order than it is


@dataclass(frozen=True, slots=True)
class Payload:
    """The `text` to show. If it is None, `why_hidden` says why. `masked` says whether the hook changed something."""

    text: str | None
    why_hidden: str = ""
    masked: bool = False


def may_view(request: HttpRequest) -> bool:
    """Return whether this user may see payloads."""
    return request.user.has_perm("delayq.view_payload")


def may_search(request: HttpRequest, alias: str) -> bool:
    """Return whether this user may search payloads: a user who may not see a value must not find it out that way."""
    return may_view(request) and not is_masked(alias)


def payload_of(row: MessageRow, request: HttpRequest, indent: int | None = INDENT) -> Payload:
    """Return the payload of `row` for the user of `request`; in one line if `indent` is None.

    A payload that the hook can't mask is hidden.
    """
    if not may_view(request):
        return Payload(None, _("You may not see payloads (permission delayq.view_payload)."))
    try:
        data = loads(row.data)
    except (ValueError, RecursionError):  # someone else wrote it
        if is_masked(row.alias):
            return Payload(None, _("It is no JSON, so it can't be masked."))
        return Payload(row.data)
    try:
        shown = masked(row, row.data)
    except Exception as error:  # noqa: BLE001  the site's hook: whatever it raises, nothing is shown
        return Payload(None, _("The hook that masks payloads failed: %(error)s.") % {"error": type(error).__name__})
    return Payload(pretty(shown, indent), masked=shown != data)


def pretty(data: Any, indent: int | None = INDENT) -> str:
    """Return JSON for people. Characters that would change the order of the text are escaped."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=str)
    return _BIDI.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_masked(alias: str) -> bool:
    """Return whether the site has a hook that masks payloads."""
    return bool(_mask_path(alias))


def masked(row: MessageRow, text: str) -> Any:
    """Return the data in a message's JSON, as the hook shows it if there is one. Raises whatever the hook raises."""
    data = loads(text)  # a copy of its own, which the hook may change
    path = _mask_path(row.alias)
    if not path:
        return data
    mask: Callable[[str, Any], Any] = import_string(path)
    return mask(row.key, data)


def _mask_path(alias: str) -> str | None:
    return get_alias(alias).options.mask if alias in alias_names() else None
