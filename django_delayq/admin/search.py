"""What the search box finds: an id or a tag, the start of one, or a value in the payload."""

import json
import re
from typing import Any

from django.db.models import Case, Q, QuerySet, TextField, Value, When

from django_delayq.admin import limits
from django_delayq.codec import loads

SEARCHED = 10_000
"""A search in payloads looks at so many rows, in the order of the list, and shows `limits.FOUND` at most."""

_IN_DATA = re.compile(r"data((?:\.[^.=]+)*)=(.*)", re.DOTALL)
_LAST = "\U0010ffff"
_NAMES = ("message_id", "tag")


def asks_for_data(text: str) -> bool:
    """Whether the search looks into payloads."""
    return _IN_DATA.fullmatch(text) is not None


def find(rows: QuerySet[Any], text: str) -> QuerySet[Any]:
    """The rows that `text` asks for: `order:42` (an id or a tag), `order:*` (how it starts), `data.order=42`."""
    in_data = _IN_DATA.fullmatch(text)
    if in_data:
        path = [part for part in in_data[1].split(".") if part]
        return rows.filter(pk__in=_with_value(rows, path, in_data[2]))
    by_id, by_tag = (_named(field, text) for field in _NAMES)
    return rows.filter(by_id | by_tag)


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


def _with_value(rows: QuerySet[Any], path: list[str], text: str) -> list[int]:
    """Looked at here: each database reads JSON its own way, and PostgreSQL stumbles over what it can't."""
    needle = json.dumps(text, ensure_ascii=False)[1:-1]
    candidate = Case(When(data__contains=needle, then="data"), default=Value(""), output_field=TextField())
    seen = rows.annotate(candidate=candidate).values_list("pk", "candidate")[:SEARCHED]
    found = (pk for pk, data in seen.iterator() if data and _has(data, path, text))
    return [pk for pk, _ in zip(found, range(limits.FOUND), strict=False)]


def _has(data: str, path: list[str], text: str) -> bool:
    try:
        value = loads(data)
    except (ValueError, RecursionError):  # someone else wrote it
        return False
    for part in path:
        value = _inner(value, part)
    return _as_text(value) == text


def _inner(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, _NOTHING)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return _NOTHING


def _as_text(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_NOTHING = object()
