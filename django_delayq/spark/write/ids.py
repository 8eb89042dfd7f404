"""Find the ids of rows, given or made of columns: a row has the same id whenever a job is run again."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django_delayq.support.validation import MAX_NAME, check_new_name, check_not_own, short_repr


def given(id: str | None) -> str:
    """Return the given id of a row. Raises `ValueError` or `TypeError` for None, and for a value that is no id."""
    if id is None:
        raise ValueError("id is null; give each row its own, which stays the same when the job is run again.")
    return check_not_own(check_new_name(id, "id"), "id")


def derived(paths: Sequence[str], key: object, *values: Any) -> str:
    """Return an id made of a key and of the values of some columns. Raises as `given` does."""
    for path, value in zip(paths, values, strict=True):
        if value is None:
            raise ValueError(f"{path} is null, of which the id is made; fill it in, or leave the row out.")
    id = ":".join([str(key), *map(_part, values)])
    if len(id) > MAX_NAME:
        raise ValueError(f"id={short_repr(id)} has {len(id)} characters; give idColumns with shorter values.")
    return check_not_own(check_new_name(id, "id"), "id")


def _part(value: object) -> str:
    """Escape a value for an id.

    Colons separate values, so a colon within a value is escaped: rows with other values never get the same id.
    """
    if isinstance(value, datetime):
        value = value.astimezone(UTC).strftime("%Y-%m-%dT%H.%M.%S.%fZ")
    return str(value).replace("%", "%25").replace(":", "%3A")
