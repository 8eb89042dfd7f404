"""The payload of a message as a viewer may see it: pretty, masked by the site's hook, or not at all."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile, zip_longest
from typing import Any

from django import forms
from django.http import HttpRequest
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from django_delayq.conf import alias_names, get_alias
from django_delayq.core.codec import decode_data, loads
from django_delayq.core.errors import DataMismatch
from django_delayq.models import MessageRow, Schedule
from django_delayq.support.validation import short_repr
from django_delayq.translation import translated

INDENT = 2
MOST_LINES = 200
"""The longest stretch, from the first line that differs to the last, in which moved and inserted lines are recognised.

The time for that may grow with the square of the length. In a longer stretch, line n is compared with line n.
"""

FIRST_LINES = 20
"""The most differences that are shown where line n is compared with line n."""

_AROUND = 1

_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # they show text in another order than it is


@dataclass(frozen=True, slots=True)
class Payload:
    """A message's payload as one user may see it.

    `text` is None if the payload is hidden; `why_hidden` says why. `masked` says whether the site's function in
    `OPTIONS["mask"]` changed the payload.
    """

    text: str | None
    why_hidden: str = ""
    masked: bool = False


def typed_json(text: str) -> str:
    """Return a payload that was typed, unchanged. Raises `forms.ValidationError` if it is no JSON."""
    try:
        decode_data(text.encode())
    except (DataMismatch, UnicodeEncodeError) as error:
        told = _("%(why)s. You typed %(data)s; write it like %(example)s, and a text in double quotes.")
        said = {"why": translated(error), "data": short_repr(text), "example": '{"id": 17}'}
        raise forms.ValidationError(told % said) from error
    return text


def may_view(request: HttpRequest) -> bool:
    """Return whether this user may see payloads."""
    return request.user.has_perm("delayq.view_payload")


def may_search(request: HttpRequest, alias: str) -> bool:
    """Return whether this user may search payloads: a user who may not see a value must not find it out that way."""
    return may_view(request) and not is_masked(alias)


def payload_of(row: MessageRow | Schedule, request: HttpRequest, indent: int | None = INDENT) -> Payload:
    """Return the payload of `row` for the user of `request`; in one line if `indent` is None."""
    return payload_in(row.data, row, request, indent)


def payload_in(text: str, row: MessageRow | Schedule, request: HttpRequest, indent: int | None = INDENT) -> Payload:
    """Return the data in `text`, which belongs to `row`, as the user of `request` may see it.

    Data that the hook can't mask are hidden.
    """
    if not may_view(request):
        return Payload(None, _("You may not see payloads (permission delayq.view_payload)."))
    try:
        data = loads(text)
    except (ValueError, RecursionError):  # someone else wrote it
        if is_masked(row.alias):
            return Payload(None, _("It is no JSON, so it can't be masked."))
        return Payload(_in_order(text))
    if not is_masked(row.alias):
        try:
            return Payload(pretty(data, indent))
        except ValueError:  # it is nested too deep
            return Payload(_in_order(text))
    try:
        shown = masked(row, text)
        return Payload(pretty(shown, indent), masked=shown != data)
    except Exception as error:  # noqa: BLE001  the site's hook: whatever it raises, nothing is shown
        return Payload(None, _("The hook that masks payloads failed: %(error)s.") % {"error": type(error).__name__})


def pretty(data: Any, indent: int | None = INDENT) -> str:
    """Return JSON for people. Characters that would change the order of the text are escaped.

    Raises `ValueError` for data that is nested too deep.
    """
    try:
        text = json.dumps(data, indent=indent, ensure_ascii=False, default=str)
    except RecursionError as error:
        raise ValueError(_("It is nested too deep.")) from error
    return _in_order(text)


def _in_order(text: str) -> str:
    return _BIDI.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_masked(alias: str) -> bool:
    """Return whether the site has a hook that masks payloads."""
    return bool(_mask_path(alias))


def masked(row: MessageRow | Schedule, text: str) -> Any:
    """Return the data in `text`, which is JSON of the message, masked if the site has a hook for that.

    Raises whatever the hook raises, and `ValueError` if the text is no JSON.
    """
    data = loads(text)  # a copy of its own, which the hook may change
    path = _mask_path(row.alias)
    if not path:
        return data
    mask: Callable[[str, Any], Any] = import_string(path)
    return mask(row.key, data)


def _mask_path(alias: str) -> str | None:
    return get_alias(alias).options.mask if alias in alias_names() else None


def kept_difference(before: str, after: str) -> str:
    """Return one text from which both payloads can be restored, in time that is linear in their lines.

    From the first line that differs to the last, the lines of the first payload are marked with "-", then those of the
    second with "+". The text is empty if the payloads are the same.
    """
    if before == after:
        return ""
    was, now = before.split("\n"), after.split("\n")
    head, tail = _same_at_both_ends(was, now)
    return "\n".join(
        [
            f"@@ -1,{len(was)} +1,{len(now)} @@",
            *_marked(" ", was[:head]),
            *_marked("-", was[head : len(was) - tail]),
            *_marked("+", now[head : len(now) - tail]),
            *_marked(" ", was[len(was) - tail :]),
        ]
    )


def shown_difference(kept: str, row: MessageRow) -> str:
    """Return a short form of a difference that the log has kept, masked as the site's hook masks payloads now.

    It is hidden if the hook can't mask it, as when not all lines were kept or one of the two payloads was no JSON.
    """
    if not (kept.startswith("@@") or is_masked(row.alias)):
        return kept  # the site's own
    before, after = _side(kept, "-"), _side(kept, "+")
    if is_masked(row.alias):
        try:
            before, after = pretty(masked(row, before)), pretty(masked(row, after))
        except Exception:  # noqa: BLE001  the site's hook: whatever it raises, nothing is shown
            return _("What was changed is hidden, because payloads are masked.")
        if before == after:
            return _("What was changed is masked.")
    return _difference(before, after)


def _difference(before: str, after: str) -> str:
    """Return the lines that differ, with one common line before and after them.

    If it is over `MOST_LINES` from the first line that differs to the last, compare line n with line n instead: return
    a line that says how many differ, and the first of them.
    """
    was, now = before.split("\n"), after.split("\n")
    head, tail = _same_at_both_ends(was, now)
    if max(len(was), len(now)) - head - tail > MOST_LINES:
        return _difference_by_place(was[head : len(was) - tail], now[head : len(now) - tail], head + 1)
    at = max(0, head - _AROUND)
    was, now = was[at : len(was) - tail + _AROUND], now[at : len(now) - tail + _AROUND]
    lines = []
    for group in SequenceMatcher(None, was, now).get_grouped_opcodes(_AROUND):
        (_tag, i, _i, j, _j), (_tag, _i, i_end, _j, j_end) = group[0], group[-1]
        lines.append(f"@@ -{at + i + 1},{i_end - i} +{at + j + 1},{j_end - j} @@")
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                lines += _marked(" ", was[i:i_end])
            else:
                lines += [*_marked("-", was[i:i_end]), *_marked("+", now[j:j_end])]
    return "\n".join(lines)


def _difference_by_place(was: list[str], now: list[str], number: int) -> str:
    """Compare line n with line n; the first is shown as line `number`.

    Return the first lines that differ, and how many do.
    """
    pairs = [pair for pair in enumerate(zip_longest(was, now), start=number) if pair[1][0] != pair[1][1]]
    lines = [
        _("Each line compared with the one in its place, %(count)d differ. The first %(first)d:")
        % {"count": len(pairs), "first": min(FIRST_LINES, len(pairs))}
    ]
    for at, (one, other) in pairs[:FIRST_LINES]:
        lines.append(f"@@ {at} @@")
        lines += [f"{mark}{line}" for mark, line in (("-", one), ("+", other)) if line is not None]
    return "\n".join(lines)


def _same_at_both_ends(was: list[str], now: list[str]) -> tuple[int, int]:
    """Return how many lines are equal from the first on, and how many of the others are equal from the last on."""
    head = _same(was, now)
    return head, _same(reversed(was[head:]), reversed(now[head:]))


def _same(was: Iterable[str], now: Iterable[str]) -> int:
    return sum(1 for _pair in takewhile(lambda pair: pair[0] == pair[1], zip(was, now, strict=False)))


def _marked(mark: str, lines: Iterable[str]) -> Iterator[str]:
    return (mark + line for line in lines)


def _side(kept: str, mark: str) -> str:
    return "\n".join(line[1:] for line in kept.split("\n") if line[:1] in (" ", mark))
