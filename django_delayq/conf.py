"""DELAYQ in the settings, as frozen dataclasses. The one place for defaults."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_delayq.durations import to_ms

DEFAULT_ALIAS = "default"
MAX_NAME = 200
"""The most characters of an id, a key or a queue."""


@dataclass(frozen=True, slots=True)
class Options:
    """The `OPTIONS` of one alias. Lengths of time in ms, sizes in bytes."""

    prefix: str = "delayq"
    shards: int = 1
    lease: int = 15_000
    max_data: int = 256 * 1024
    unknown_keys: str = "error"  # or "allow"
    error_retention: int = 30 * 86_400_000
    error_max: int = 100_000


@dataclass(frozen=True, slots=True)
class Alias:
    """One configured delayq."""

    name: str
    broker: str = "django_delayq.brokers.redis.RedisBroker"
    location: str = "redis://127.0.0.1:6379/0"
    database: str = "default"
    options: Options = Options()


def get_alias(name: str = DEFAULT_ALIAS) -> Alias:
    """The settings of one alias. Raises `ImproperlyConfigured`, naming the value and the fix."""
    if name not in _cache:
        configured = getattr(settings, "DELAYQ", {DEFAULT_ALIAS: {}})
        if not isinstance(configured, Mapping):
            raise ImproperlyConfigured(f"DELAYQ is {type(configured).__name__}; make it a dict of aliases.")
        if name not in configured:
            known = ", ".join(sorted(configured)) or "none"
            raise ImproperlyConfigured(f"DELAYQ has no alias {name!r}; it has: {known}.")
        _cache[name] = parse_alias(name, configured[name])
    return _cache[name]


def alias_names() -> list[str]:
    """The configured aliases, in the order of the settings."""
    return list(getattr(settings, "DELAYQ", {DEFAULT_ALIAS: {}}))


_cache: dict[str, Alias] = {}


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "DELAYQ":
        _cache.clear()


setting_changed.connect(_forget, dispatch_uid="delayq.conf")
