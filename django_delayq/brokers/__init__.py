"""Build the backend of each alias, and keep it for the process. No other module builds brokers and backends."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_delayq.brokers.base import Backend, Broker
from django_delayq.conf import BROKER, DEFAULT_ALIAS, Alias, get_alias
from django_delayq.core.errors import DelayqError

DATABASE_BACKEND = "django_delayq.store.DatabaseBackend"
_backends: dict[str, Backend] = {}
_lock = threading.Lock()


def get_backend(name: str | None = None) -> Backend:
    """Return the backend of an alias; without a name, of the default alias. A forked process gets backends of its own.

    The backend connects when it is first used. Raises `ImproperlyConfigured`, naming the setting and the fix.
    """
    name = DEFAULT_ALIAS if name is None else name
    backend = _backends.get(name)
    if backend is None:
        with _lock:
            backend = _backends.get(name)
            if backend is None:
                backend = _backends[name] = _new_backend(name)
    return backend


def broker_class(alias: Alias) -> type[Broker]:
    """Return the class that an alias's BROKER names. Raises `ImproperlyConfigured`, naming the value and the fix."""
    setting = f'DELAYQ["{alias.name}"]["BROKER"]={alias.broker!r}'
    try:
        found = import_string(alias.broker)
    except ImportError as error:
        fix = "; pip install 'django-delayq[rabbitmq]'" if error.name == "amqp" else ""
        raise ImproperlyConfigured(f"{setting} can't be imported: {error}{fix}") from error
    if not isinstance(found, type) or not all(
        hasattr(found, name) for name in ("check", "places", "risks", "needs_store")
    ):
        raise ImproperlyConfigured(f"{setting} is no broker class, such as {BROKER!r}.")
    return found


def lacks_store(alias: Alias) -> str:
    """Return an error message if an alias has no store and its broker carries no messages; else "".

    Raises `ImproperlyConfigured` like `broker_class`.
    """
    if alias.store is not None or not broker_class(alias).needs_store:
        return ""
    return (
        f'DELAYQ["{alias.name}"]["STORE"] is None, and {alias.broker_name} keeps no messages: it is a timer for '
        'those in a database. Leave "STORE" out, or set it to {}, and migrate; or use Redis, which needs no store.'
    )


def _new_backend(name: str) -> Backend:
    alias = get_alias(name)
    if problem := lacks_store(alias):
        raise ImproperlyConfigured(problem)
    make = cast(Callable[[Alias], Any], broker_class(alias))
    broker = make(alias)
    if alias.store is None:
        return cast(Backend, broker)
    # Imported by name, like brokers, because it imports models, which exist only once the apps are ready.
    stored: Backend = import_string(DATABASE_BACKEND)(alias, alias.store, broker)
    return stored


def _forget_after_fork() -> None:
    # The parent's sockets must not be shared, and its thread may have held the lock at the fork.
    global _lock
    _backends.clear()
    _lock = threading.Lock()


def _close_on_change(*, setting: str, **kwargs: Any) -> None:
    if setting != "DELAYQ":
        return
    while _backends:
        _, backend = _backends.popitem()
        with contextlib.suppress(DelayqError):
            backend.close()


os.register_at_fork(after_in_child=_forget_after_fork)
setting_changed.connect(_close_on_change, dispatch_uid="delayq.backends")
