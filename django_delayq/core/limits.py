"""The limits of a handler: how many messages may run at once, and how often, over all workers. Pure values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_delayq.core.errors import DataMismatch
from django_delayq.support.validation import MAX_NAME, check_count, shown

MOST_CONCURRENCY = 1_000
"""The largest `max_concurrency`: the broker goes through all that hold a permit."""
MOST_RATE = 1_000_000

_UNIT_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_RATE = re.compile(r"([0-9]{1,9})/([a-z])", re.ASCII)
_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one handler; None where there is no such limit."""

    max_concurrency: int | None = None
    concurrency_key: str | None = None
    """A text with fields of the data; each of its values has `max_concurrency` permits. None: all share them."""
    interval_us: int | None = None
    """The time from one start to the next."""

    @property
    def most_of_all(self) -> int | None:
        """Return how many messages of the handler may run at once, whatever their data.

        None where that is not limited, or only for each value of `concurrency_key`.
        """
        return None if self.concurrency_key is not None else self.max_concurrency

    def value_of(self, data: Any) -> str:
        """Return `concurrency_key` with the fields of a message's data filled in, as JSON has them.

        Raises `DataMismatch`.
        """
        if self.concurrency_key is None:
            return ""
        value = _FIELD.sub(lambda field: _text_of(field.group(1), data, self.concurrency_key), self.concurrency_key)
        if len(value) > MAX_NAME:
            raise DataMismatch(
                f"concurrency_key={shown(value)} has {len(value)} characters; at most {MAX_NAME} will do."
            )
        return value

    @property
    def fields(self) -> list[str]:
        """Return the names of the data's fields in `concurrency_key`; '' is the data itself."""
        return _FIELD.findall(self.concurrency_key or "")


def check_limits(max_concurrency: int | None, concurrency_key: str | None, rate_limit: str | None) -> Limits | None:
    """Return the limits that `delay_execute` was given, or None without any. Raises naming the value and the fix."""
    if max_concurrency is None and concurrency_key is None and rate_limit is None:
        return None
    if max_concurrency is not None:
        check_count(max_concurrency, "max_concurrency", most=MOST_CONCURRENCY)
    elif concurrency_key is not None:
        raise ValueError(f"concurrency_key={shown(concurrency_key)} limits nothing alone; add max_concurrency=1.")
    return Limits(
        max_concurrency,
        None if concurrency_key is None else _checked_template(concurrency_key),
        None if rate_limit is None else _interval_us(rate_limit),
    )


def _interval_us(rate: str) -> int:
    """Return the time between two starts in µs, rounded up: messages never start more often than asked for."""
    if not isinstance(rate, str):
        raise TypeError(f"rate_limit={shown(rate)} is {type(rate).__name__}; write it like '100/m'.")
    found = _RATE.fullmatch(rate)
    if found is None or found[2] not in _UNIT_US:
        raise ValueError(f"rate_limit={shown(rate)} is no rate; write it like '10/s', '100/m', '1000/h' or '5000/d'.")
    count = check_count(int(found[1]), "the number of rate_limit", most=MOST_RATE)
    return -(-_UNIT_US[found[2]] // count)


def _checked_template(template: str) -> str:
    if not isinstance(template, str):
        raise TypeError(f"concurrency_key={shown(template)} is {type(template).__name__}; give one str.")
    fields = _FIELD.findall(template)
    if not fields or "{" in (rest := _FIELD.sub("", template)) or "}" in rest:
        raise ValueError(
            f"concurrency_key={shown(template)} names no field of the data; write it like 'account:{{account_id}}', "
            "or 'account:{}' for the data itself."
        )
    for field in fields:
        if field and not field.isidentifier():
            raise ValueError(f"concurrency_key={shown(template)}: {{{field}}} is no name of a field; give one name.")
    return template


def _text_of(field: str, data: Any, template: str | None) -> str:
    value = data
    if field:
        if not isinstance(data, Mapping) or field not in data:
            raise DataMismatch(f"concurrency_key={shown(template)} names {field!r}, which this data doesn't have.")
        value = data[field]
    if value is None or isinstance(value, Mapping | list | float):
        what = f"the field {field!r}" if field else "the data itself"
        raise DataMismatch(f"concurrency_key={shown(template)}: {what} is {shown(value)}; give text or a whole number.")
    text = str(value)
    return text if text.isprintable() else repr(text)
