"""Search the lists for an id or a tag, for the start of one, or for a value in the payload."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import Any

from django.db.models import Q, QuerySet

from django_delayq.admin.lists import bounded
from django_delayq.admin.lists.bounded import Searched
from django_delayq.brokers.base import pages
from django_delayq.core.codec import loads
from django_delayq.models import TagRow

SEARCHED = 10_000
"""The most rows that a page looks at in a search of payloads, in the order of the list.

It shows at most `bounded.FOUND` rows. An action on all that match looks at every row.
"""

LOOKING_S = 1.5
"""Seconds that a page, or a step of a job, looks into payloads: a part of the `bounded.LIMIT_S` for the database."""

CHUNK, LARGEST_PAGE = 50, 2_000
"""How many payloads are in memory at a time, and how many the database compares in one query. Each may be large."""

QUICK_S, GROWTH = 0.1, 4
"""After a query that took less than `QUICK_S`, the next one compares `GROWTH` times as many payloads."""

_PART = r'"(?:[^"\\]|\\.)*"|[^.="][^.=]*'
_IN_DATA = re.compile(rf"data((?:\.(?:{_PART}))*)=(.*)", re.DOTALL)
_INDEX = re.compile(r"[0-9]{1,9}")  # `isdigit` is true of ², which is no number
_LAST = "\U0010ffff"
_NAMES = ("message_id", "tag")


def asks_for_data(text: str) -> bool:
    """Return whether the search looks into payloads."""
    return _IN_DATA.fullmatch(text) is not None


def with_value(text: str, shown: Callable[[str], str]) -> str:
    """Return a search with `shown(value)` in place of the value that it looks for in payloads."""
    found = _IN_DATA.fullmatch(text)
    return f"data{found[1]}={shown(found[2])}" if found else text


def find(rows: QuerySet[Any], text: str) -> tuple[QuerySet[Any], bool]:
    """Return the rows whose id or tag is the text (`order:42`), or starts with it (`order:*`).

    Return also whether more than `bounded.FOUND` are known to have it as a tag after their first.
    """
    by_id, by_tag = (_named(field, text) for field in _NAMES)
    named_in = TagRow.objects.using(rows.db).filter(_named("tag", text)).values("message_pk")
    tagged = rows.filter(pk__in=named_in).order_by().values_list("pk", flat=True)
    few = list(tagged[: bounded.FOUND + 1])
    is_many = len(few) > bounded.FOUND
    # Few are named one by one: with a subquery here, databases would look at all rows
    return rows.filter(by_id | by_tag | Q(pk__in=tagged if is_many else few)), is_many


def find_data(rows: QuerySet[Any], text: str, *, most_looked: int, most_found: int) -> Searched:
    """Find the rows whose payload has what `text` asks for (`data.order=42`), in their order, until a limit is reached.

    It reads at least one row, even when that takes longer than `LOOKING_S`.
    """
    ends = monotonic() + LOOKING_S
    pks: list[int] = []
    looked = last = 0
    for pk, has in _looked_at(rows, text, most_looked + 1):
        if looked == most_looked or len(pks) == most_found or (looked and monotonic() >= ends):
            return Searched(pks, looked, last, is_whole=False)
        looked, last = looked + 1, pk
        if has:
            pks.append(pk)
    return Searched(pks, looked, last, is_whole=True)


def find_on_page(rows: QuerySet[Any], text: str) -> Searched:
    """Call `find_data` with the limits of a page."""
    return find_data(rows, text, most_looked=SEARCHED, most_found=bounded.FOUND)


def all_with_data(rows: QuerySet[Any], text: str) -> Iterator[int]:
    """Yield the primary keys of all rows whose payload has what `text` asks for, in their order."""
    return (pk for pk, has in _looked_at(rows, text) if has)


def is_many(rows: QuerySet[Any], text: str) -> bool:
    """Return whether more than `bounded.FOUND` of these rows have the id, or the first tag, that is searched for.

    Each index is asked by itself, in its own order. With both conditions in one query a database may read the table
    instead, to its end if the matching rows are there.
    """
    return any(
        rows.filter(_named(field, text)).order_by(field).values_list("pk")[bounded.FOUND : bounded.FOUND + 1]
        for field in _NAMES
    )


def _named(field: str, text: str) -> Q:
    if not text.endswith("*") or len(text) == 1:
        return Q(**{field: text})
    # Not LIKE, for which most databases would need another index: these indexes are in the order of characters.
    return Q(**{f"{field}__gte": text[:-1], f"{field}__lte": text[:-1] + _LAST})


def _looked_at(rows: QuerySet[Any], text: str, most: int | None = None) -> Iterator[tuple[int, bool]]:
    """Yield the primary key of each row, at most `most`, and whether its payload has the value.

    The comparison is made here because each database reads JSON in its own way, and PostgreSQL fails on JSON that it
    can't hold.
    """
    in_data = _IN_DATA.fullmatch(text)
    if in_data is None:
        raise ValueError(f"{text!r} asks for nothing in a payload.")
    path, value = [_name(part) for part in re.findall(rf"\.({_PART})", in_data[1])], _as_compared(in_data[2])
    # The same list or object may be written with other spaces, or in another order.
    needle = "" if value[:1] in {"[", "{"} else json.dumps(value, ensure_ascii=False)[1:-1]
    # Not one query for all payloads: a MySQL client holds the whole result, however few rows are fetched at a time.
    pks = rows.values_list("pk", flat=True)[:most].iterator()
    size = CHUNK
    while page := list(islice(pks, size)):
        began_at = monotonic()
        candidates = set(_by_pk(rows, page).filter(data__contains=needle).values_list("pk", flat=True))
        if monotonic() - began_at < QUICK_S:
            size = min(size * GROWTH, LARGEST_PAGE)
        payloads = _payloads(rows, [pk for pk in page if pk in candidates])
        for pk in page:
            yield pk, pk in candidates and _has(next(payloads), path, value)


def _payloads(rows: QuerySet[Any], pks: Sequence[int]) -> Iterator[str]:
    """Yield the payload of each row, `""` if the row is gone, and hold `CHUNK` of them at a time."""
    for chunk in pages(pks, CHUNK):
        payloads: dict[int, str] = dict(_by_pk(rows, chunk).values_list("pk", "data"))
        yield from (payloads.get(pk, "") for pk in chunk)


def _by_pk(rows: QuerySet[Any], pks: Sequence[int]) -> QuerySet[Any]:
    found: QuerySet[Any] = rows.model._default_manager.using(rows.db).filter(pk__in=pks)
    return found


def _has(data: str, path: list[str], text: str) -> bool:
    try:
        value = loads(data)
        for part in path:
            value = _inner(value, part)
        return _as_text(value) == text
    except (ValueError, RecursionError):  # someone else wrote it
        return False


def _name(part: str) -> str:
    """Return one part of a path, unquoted. A name with a dot must be written as a JSON string."""
    try:
        return str(loads(part)) if part.startswith('"') else part
    except ValueError:
        return part


def _inner(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, _NOTHING)
    if isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
        return value[int(part)]
    return _NOTHING


def _as_compared(text: str) -> str:
    """Return the text in the form of `_as_text` if it is a list or an object, and unchanged otherwise."""
    try:
        value = loads(text)
        return json.dumps(value, ensure_ascii=False, sort_keys=True) if isinstance(value, list | dict) else text
    except (ValueError, RecursionError):
        return text


def _as_text(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


_NOTHING = object()
