"""What the search box finds: an id or a tag, the start of one, or a value in the payload."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

from django.db.models import Case, Q, QuerySet, TextField, Value, When
from django.http import HttpRequest

from django_delayq.admin import limits
from django_delayq.core.codec import loads

SEARCHED = 10_000
"""Where a page searches in payloads it looks at so many rows, in the order of the list, and shows `limits.FOUND` at
most. What is done to all that match looks at every one."""

LOOKING_S = 1.5
"""A page, or a step of a job, looks into payloads so long, of the `limits.LIMIT_S` that the database may take."""

CHUNK = 50
"""So many payloads are in memory at a time, each of which may be large."""

_PART = r'"(?:[^"\\]|\\.)*"|[^.="][^.=]*'
_IN_DATA = re.compile(rf"data((?:\.(?:{_PART}))*)=(.*)", re.DOTALL)
_LAST = "\U0010ffff"
_NAMES = ("message_id", "tag")


class Searched(NamedTuple):
    """How far a search in payloads went: what it found, of how many rows, and the last of those.

    It looked at every one, or it stopped before the end (`is_whole` is False), and there may be more.
    """

    pks: list[int]
    looked: int
    last: int
    is_whole: bool


class StoppedSearch(NamedTuple):
    """A search in the payloads of `rows` that stopped before the end."""

    rows: QuerySet[Any]
    text: str
    found: Searched


def stopped_search(request: HttpRequest) -> StoppedSearch | None:
    """The search of a list that stopped, as the list has noted it on its request."""
    return getattr(request, "delayq_stopped", None)


def asks_for_data(text: str) -> bool:
    """Whether the search looks into payloads."""
    return _IN_DATA.fullmatch(text) is not None


def find(rows: QuerySet[Any], text: str) -> QuerySet[Any]:
    """The rows that `text` names: `order:42` (an id or a tag), `order:*` (how it starts)."""
    by_id, by_tag = (_named(field, text) for field in _NAMES)
    return rows.filter(by_id | by_tag)


def find_data(rows: QuerySet[Any], text: str, *, most_looked: int, most_found: int) -> Searched:
    """The rows whose payload has what `text` asks for (`data.order=42`), in their order, until it must stop.

    However slow it is, it looks into one.
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
    """As `find_data`, as far as a page goes."""
    return find_data(rows, text, most_looked=SEARCHED, most_found=limits.FOUND)


def all_with_data(rows: QuerySet[Any], text: str) -> Iterator[int]:
    """The primary key of every one of the rows whose payload has what `text` asks for, in their order."""
    return (pk for pk, has in _looked_at(rows, text) if has)


def is_many(rows: QuerySet[Any], text: str) -> bool:
    """Whether more than `limits.FOUND` of these rows have the id, or the tag, that is searched for.

    Each index is asked by itself, in its own order. With both conditions in one query a database may well count by
    reading the table, which is all of it for rows that stand at its end.
    """
    return any(
        rows.filter(_named(field, text)).order_by(field).values_list("pk")[limits.FOUND : limits.FOUND + 1]
        for field in _NAMES
    )


def _named(field: str, text: str) -> Q:
    if not text.endswith("*") or len(text) == 1:
        return Q(**{field: text})
    # Not LIKE, for which most databases would need another index: names are ordered by their characters.
    return Q(**{f"{field}__gte": text[:-1], f"{field}__lte": text[:-1] + _LAST})


def _looked_at(rows: QuerySet[Any], text: str, most: int | None = None) -> Iterator[tuple[int, bool]]:
    """Each row, at most `most`, and whether its payload has the value.

    Looked at here: each database reads JSON its own way, and PostgreSQL stumbles over what it can't.
    """
    in_data = _IN_DATA.fullmatch(text)
    if in_data is None:
        raise ValueError(f"{text!r} asks for nothing in a payload.")
    path, value = [_name(part) for part in re.findall(rf"\.({_PART})", in_data[1])], _as_compared(in_data[2])
    # A list or an object may stand there with other spaces, or in another order.
    needle = "" if value[:1] in {"[", "{"} else json.dumps(value, ensure_ascii=False)[1:-1]
    candidate = Case(When(data__contains=needle, then="data"), default=Value(""), output_field=TextField())
    # Not one query for all the payloads: clients of MySQL hold all that it finds, whatever is asked for at a time.
    pks = rows.values_list("pk", flat=True)[:most].iterator()
    while chunk := list(islice(pks, CHUNK)):
        by_pk = rows.model._default_manager.using(rows.db).filter(pk__in=chunk)
        payloads: dict[int, str] = dict(by_pk.values_list("pk", candidate))
        for pk in chunk:
            data = payloads.get(pk, "")
            yield pk, bool(data) and _has(data, path, value)


def _has(data: str, path: list[str], text: str) -> bool:
    try:
        value = loads(data)
    except (ValueError, RecursionError):  # someone else wrote it
        return False
    for part in path:
        value = _inner(value, part)
    return _as_text(value) == text


def _name(part: str) -> str:
    """A part of a path: a name that has a dot is written as JSON writes a text."""
    try:
        return str(loads(part)) if part.startswith('"') else part
    except ValueError:
        return part


def _inner(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, _NOTHING)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return _NOTHING


def _as_compared(text: str) -> str:
    """A list or an object that was typed as `_as_text` writes it; else the text."""
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(value, ensure_ascii=False, sort_keys=True) if isinstance(value, list | dict) else text


def _as_text(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


_NOTHING = object()
