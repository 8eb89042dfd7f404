"""The handlers of this process by alias and key: sending and the worker find them here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django_delayq.core.errors import UnknownKey
from django_delayq.support.validation import did_you_mean, shown

if TYPE_CHECKING:  # a handler can send, and a send looks its handler up
    from django_delayq.api.handlers import Handler

_registry: "dict[str, dict[str, Handler[Any, Any]]]" = {}


def register(handler: "Handler[Any, Any]") -> None:
    """Let a handler serve its keys. Raises `ValueError` for a key that another handler serves."""
    by_key = _registry.setdefault(handler.using, {})
    keys = (handler.key, *handler.former_keys)
    for key in keys:
        if key in by_key:
            raise ValueError(f"key {key!r} belongs to {name_of(by_key[key].func)} already; give each handler its own.")
    by_key.update(dict.fromkeys(keys, handler))


def get_handler(using: str, key: str) -> "Handler[Any, Any] | None":
    """Return the handler of an alias that serves `key`, also as a former key."""
    return _registry.get(using, {}).get(key)


def handlers_by_key(using: str) -> "Mapping[str, Handler[Any, Any]]":
    """Return the handlers of an alias by key, former keys too."""
    return dict(_registry.get(using, {}))


def registered_handlers() -> "list[Handler[Any, Any]]":
    """Return each handler of every alias once, in the order of registration."""
    return list(dict.fromkeys(handler for by_key in _registry.values() for handler in by_key.values()))


def unknown_key(using: str, key: str) -> UnknownKey:
    """Return the error for a key without a handler."""
    elsewhere = sorted(other for other, by_key in _registry.items() if key in by_key)
    if elsewhere:
        return UnknownKey(f"key={shown(key)} has its handler in another alias; pass using={elsewhere[0]!r}.")
    return UnknownKey(
        f"key={shown(key)} has no handler in alias {using!r}: {did_you_mean(key, _registry.get(using, ()))}"
    )


def name_of(func: object) -> str:
    """Return the name of a function with its module, as an error message shows it."""
    return f"{getattr(func, '__module__', '?')}.{getattr(func, '__qualname__', shown(func))}"
