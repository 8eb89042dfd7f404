"""Keep the handlers of this process by alias and key.

Sends look handlers up here, and handlers can send. To avoid a circular import, this module does not import `Handler`;
`Registered` describes the part of it that is needed.
"""

from collections.abc import Callable
from typing import Any, Protocol

from django_delayq.core.errors import UnknownKey
from django_delayq.core.human_time import Windows
from django_delayq.core.limits import Limits
from django_delayq.core.message import IdScope
from django_delayq.core.shares import Shares
from django_delayq.support.translatable import text as _
from django_delayq.support.validation import did_you_mean, short_repr


class Registered(Protocol):
    """The part of a `Handler` that sends and stores need."""

    key: str
    former_keys: tuple[str, ...]
    using: str
    queue: str
    priority: int
    expires_ms: int | None
    atomic: bool
    at_most_once: bool
    limits: Limits | None
    id_scope: IdScope
    window: Windows | None
    version: int
    shares: Shares | None

    @property
    def func(self) -> Callable[..., Any]: ...

    @property
    def data_type(self) -> Any: ...

    def data_of(self, body: bytes, version: int | None) -> Any: ...

    def __hash__(self) -> int: ...


WHERE_HANDLERS_ARE = _("Handlers are found in the `delayed` module of each installed app.")

by_alias: dict[str, dict[str, Registered]] = {}
"""The handlers of each alias by the keys that they serve, including former keys."""


def register(handler: Registered) -> None:
    """Let a handler serve its keys. Raises `ValueError` for a key that another handler serves."""
    by_key = by_alias.setdefault(handler.using, {})
    keys = (handler.key, *handler.former_keys)
    for key in keys:
        if key in by_key:
            raise ValueError(f"key {key!r} belongs to {name_of(by_key[key].func)} already; give each handler its own.")
    by_key.update(dict.fromkeys(keys, handler))


def find(using: str, key: str) -> Registered | None:
    """Return the handler of an alias that serves `key`, also as a former key; None if there is none."""
    return by_alias.get(using, {}).get(key)


def unknown_key(using: str, key: str) -> UnknownKey:
    """Return the error for a key without a handler."""
    elsewhere = sorted(other for other, by_key in by_alias.items() if key in by_key)
    if elsewhere:
        return UnknownKey(f"key={short_repr(key)} has its handler in another alias; pass using={elsewhere[0]!r}.")
    return UnknownKey(
        f"key={short_repr(key)} has no handler in alias {using!r}: {did_you_mean(key, by_alias.get(using, ()))}"
        f" {WHERE_HANDLERS_ARE}"
    )


def name_of(func: object) -> str:
    """Return the name of a function with its module, as an error message shows it."""
    return f"{getattr(func, '__module__', '?')}.{getattr(func, '__qualname__', short_repr(func))}"
