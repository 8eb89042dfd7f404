"""Fill texts such as "account:{account_id}" from the data of a message, for limits and shares. Pure."""

import re
from functools import lru_cache
from typing import Any

from django_delayq.core.errors import DataMismatch
from django_delayq.support.validation import MAX_NAME, short_repr

_FIELD = re.compile(r"\{([^{}]*)\}")


def fields_in(template: str) -> list[str]:
    """Return the fields of the data that a template such as "account:{account_id}" names; '' is the data itself."""
    return _FIELD.findall(template)


def checked_template(option: str, template: str) -> str:
    """Return a template unchanged. Raises `TypeError` or `ValueError`, naming the value and the fix."""
    if not isinstance(template, str):
        raise TypeError(f"{option}={short_repr(template)} is {type(template).__name__}; give one str.")
    fields = _FIELD.findall(template)
    if not fields or "{" in (rest := _FIELD.sub("", template)) or "}" in rest:
        raise ValueError(
            f"{option}={short_repr(template)} names no field of the data; write it like "
            "'account:{account_id}', or 'account:{}' for the data itself."
        )
    for name in fields:
        if name and not name.isidentifier():
            raise ValueError(f"{option}={short_repr(template)}: {{{name}}} is no name of a field; give one name.")
    return template


def filled(option: str, template: str | None, data: Any, most: int = MAX_NAME) -> str:
    """Return a template with its fields filled in, in at most `most` characters; '' if it is None.

    If there are several fields, their lengths follow, because "1" and "2:3" would otherwise give the same text as "1:2"
    and "3".
    """
    if template is None:
        return ""
    form, fields = _compiled(template)
    texts = [_text_of(field, data, option, template) for field in fields]
    value = form % tuple(texts)
    if len(texts) > 1:
        value += f" {','.join(str(len(text)) for text in texts)}"
    if len(value) > most:
        raise DataMismatch(
            f"{option}={short_repr(template)} makes {len(value)} characters of this data; at most {most} will do."
        )
    return value


@lru_cache
def _compiled(template: str) -> tuple[str, list[str]]:
    """Return a template as a format of the operator %, and the names of its fields."""
    return _FIELD.sub("%s", template.replace("%", "%%")), _FIELD.findall(template)


def _text_of(field: str, data: Any, option: str, template: str) -> str:
    value = data
    if field:
        if not isinstance(data, dict) or field not in data:
            raise DataMismatch(f"{option}={short_repr(template)} names {field!r}, which this data doesn't have.")
        value = data[field]
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        what = f"the field {field!r}" if field else "the data itself"
        raise DataMismatch(
            f"{option}={short_repr(template)}: {what} is of type {type(value).__name__}; give text or a whole number."
        )
    return value if value.isprintable() and not value.startswith(("'", '"')) else repr(value)
