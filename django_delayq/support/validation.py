"""Check the values that callers give, and shorten them for error messages. Pure functions."""

import difflib
import re
import reprlib
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from django_delayq.support.translatable import text as _

OWN = "delayq."
"""The prefix of the keys, ids and tags of django-delayq's own messages, such as those of the admin's jobs."""

MAX_NAME = 200
"""The most characters of an id, a key, a queue or a tag."""

# Brokers separate fields by control characters, which can also forge log lines. Lone surrogates have no UTF-8.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_INVISIBLE = "Cf"
"""The Unicode category of characters that hide or reorder what stands beside them, such as U+202E."""

_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 80


def short_repr(value: object) -> str:
    """Return the repr of `value`, short enough for an error message, even when its own repr raises."""
    try:
        return _shortener.repr(value)
    except ValueError:  # Python refuses to write a number of thousands of digits; reprlib handles that from 3.14 on
        return f"<{type(value).__name__} with a number of over {sys.get_int_max_str_digits()} digits>"


def check_name(value: str, kind: str) -> str:
    """Return `value` as a plain str. Raises `TypeError` or `ValueError` naming `kind`, the value and the fix."""
    if type(value) is not str:
        if not isinstance(value, str):
            raise TypeError(f"{kind}={short_repr(value)} is {type(value).__name__}; give one str.")
        value = str.__str__(value)  # a TextChoices member or a SafeString is its text
    if not value:
        raise ValueError(_("%(kind)s='' is empty; give 1 to %(most)d characters.", kind=kind, most=MAX_NAME))
    if len(value) > MAX_NAME:
        raise ValueError(
            _(
                "%(kind)s=%(value)s has %(number)d characters; give at most %(most)d.",
                kind=kind,
                value=short_repr(value),
                number=len(value),
                most=MAX_NAME,
            )
        )
    if not value.isprintable() and (found := _FORBIDDEN.search(value)):
        raise ValueError(
            _(
                "%(kind)s=%(value)s contains %(character)r; leave out control characters.",
                kind=kind,
                value=short_repr(value),
                character=found.group(),
            )
        )
    return value


def check_new_name(value: str, kind: str) -> str:
    """Return `value` like `check_name`. Also raises for invisible characters, which only older names may still have."""
    value = check_name(value, kind)
    if not value.isprintable():
        for character in value:
            if unicodedata.category(character) == _INVISIBLE:
                what = f"{kind}={short_repr(value)} contains U+{ord(character):04X}"
                raise ValueError(f"{what}, which hides or reorders text; leave it out.")
    return value


def check_not_own(value: str, kind: str) -> str:
    """Return `value`, a name. Raises `ValueError` if it begins like those of django-delayq's own messages."""
    if value.startswith(OWN):
        what = f"{kind}={short_repr(value)}"
        raise ValueError(f"{what} is for messages of django-delayq itself; choose one without {OWN!r}.")
    return value


def are_names(values: Sequence[object]) -> bool:
    """Return True only if `check_new_name` and `check_not_own` would return every value unchanged.

    If False, each must be checked.
    """
    if set(map(type, values)) != {str}:
        return not values
    texts = cast(Sequence[str], values)
    joined = "".join(texts)
    return max(map(len, texts)) <= MAX_NAME and "" not in texts and joined.isprintable() and OWN not in joined


def check_queue(value: str, check: Callable[[str, str], str] = check_name) -> str:
    """Return `value` as the name of a queue. Raises like `check`, and `ValueError` for a colon."""
    name = check(value, "queue")
    if ":" in name:
        raise ValueError(
            _(
                "queue=%(value)s contains a colon, which brokers put between queue and key; leave it out.",
                value=short_repr(value),
            )
        )
    return name


def check_count(value: int, kind: str, least: int = 1, most: int | None = None) -> int:
    """Return `value`, a whole number from `least` to `most`. Raises `TypeError` or `ValueError` like `check_name`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{kind}={short_repr(value)} is {type(value).__name__}; give a whole number.")
    if value < least:
        raise ValueError(f"{kind}={short_repr(value)} is too small; give {least} or more.")
    if most is not None and value > most:
        raise ValueError(f"{kind}={short_repr(value)} is too large; give {most} or less.")
    return value


def check_max_attempts(value: int) -> int:
    """Return `value`, a whole number that every database can store. Raises like `check_count`."""
    return check_count(value, "max_attempts", most=2**31 - 1)


def check_priority(value: int) -> int:
    """Return `value`, a whole number from -100 to 100, as Django has them. Raises like `check_count`."""
    return check_count(value, "priority", -100, 100)


def check_flag(value: bool, kind: str) -> bool:
    """Return `value`, which is True or False. Raises `TypeError`, naming `kind`, the value and the fix."""
    if not isinstance(value, bool):
        raise TypeError(f"{kind}={short_repr(value)} is {type(value).__name__}; give True or False.")
    return value


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the name in `known` that is most like `wrong`, or all if none is like it."""
    names = sorted(known)
    in_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(wrong, names, n=1) or [
        in_lower[name] for name in difflib.get_close_matches(wrong.lower(), in_lower, n=1)
    ]
    if near:
        return _("did you mean %(name)s?", name=repr(near[0]))
    return _("there is: %(names)s.", names=", ".join(names)) if names else _("there is none.")
