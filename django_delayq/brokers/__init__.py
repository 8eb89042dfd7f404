"""Find the broker that an alias uses, and keep it for the process."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_delayq.brokers.base import Broker, Capability, Timer
from django_delayq.conf import BROKER, DEFAULT_ALIAS, Alias, get_alias
from django_delayq.core.errors import DelayqError

STORED_BROKER = "django_delayq.store.StoredBroker"
_brokers: dict[str, Broker] = {}
_lock = threading.Lock()


def get_broker(name: str = DEFAULT_ALIAS) -> Broker:
    """Return the broker of an alias, one for the process; a forked process gets its own.

    It connects at its first verb. Raises `ImproperlyConfigured`, naming the setting and the fix.
    """
    broker = _brokers.get(name)
    if broker is None:
        with _lock:
            broker = _brokers.get(name)
            if broker is None:
                broker = _brokers[name] = _new_broker(name)
    return broker


def broker_class(alias: Alias) -> type[Timer]:
    """Return the class that an alias's BROKER names. Raises `ImproperlyConfigured`, naming the value and the fix."""
    setting = f'DELAYQ["{alias.name}"]["BROKER"]={alias.broker!r}'
    try:
        found = import_string(alias.broker)
    except ImportError as error:
        raise ImproperlyConfigured(f"{setting} can't be imported: {error}") from error
    if not isinstance(found, type) or not all(hasattr(found, verb) for verb in _verbs_of(found)):
        raise ImproperlyConfigured(f"{setting} is no broker class, such as {BROKER!r}.")
    return found


def _verbs_of(broker: type) -> set[str]:
    """Return the attributes that a class must have: a timer's if its capabilities lack `MESSAGES`, else a broker's."""
    is_timer = Capability.MESSAGES not in getattr(broker, "capabilities", Capability)
    protocols = (Timer,) if is_timer else Broker.__mro__
    return {"capabilities", *(name for each in protocols for name in vars(each) if not name.startswith("_"))}


def lacks_store(alias: Alias) -> str:
    """Return why an alias needs a store that it does not have (its broker carries no messages), or "".

    Raises `ImproperlyConfigured` as `broker_class` does.
    """
    if alias.store is not None or Capability.MESSAGES in broker_class(alias).capabilities:
        return ""
    name = alias.broker.rpartition(".")[2]
    return (
        f'DELAYQ["{alias.name}"]["STORE"] is None, and {name} keeps no messages: it is a timer for those in a database.'
        ' Leave "STORE" out, or set it to {}, and migrate; or use Redis, which needs no store.'
    )


def _new_broker(name: str) -> Broker:
    alias = get_alias(name)
    if problem := lacks_store(alias):
        raise ImproperlyConfigured(problem)
    make = cast(Callable[[Alias], Broker], broker_class(alias))
    broker = make(alias)
    if alias.store is None:
        return broker
    # By name, as brokers are: it imports models, which exist only once the apps are ready.
    stored: Broker = import_string(STORED_BROKER)(alias, alias.store, broker)
    return stored


def _forget_after_fork() -> None:
    # The parent's sockets must not be shared, and its thread may have held the lock at the fork.
    global _lock
    _brokers.clear()
    _lock = threading.Lock()


def _close_on_change(*, setting: str, **kwargs: Any) -> None:
    if setting != "DELAYQ":
        return
    while _brokers:
        _, broker = _brokers.popitem()
        with contextlib.suppress(DelayqError):
            broker.close()


os.register_at_fork(after_in_child=_forget_after_fork)
setting_changed.connect(_close_on_change, dispatch_uid="delayq.brokers")
