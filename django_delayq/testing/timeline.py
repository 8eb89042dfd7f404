"""Find the time that the tests of a site move: the memory broker's, or that of a store's rows."""

from typing import TYPE_CHECKING, Union

from django.core.exceptions import ImproperlyConfigured

from django_delayq.brokers import get_backend
from django_delayq.testing.broker import VIRTUAL_TIME_BROKER, VirtualTimeBroker

if TYPE_CHECKING:
    from django_delayq.testing.aged import AgedRows

Timeline = Union[VirtualTimeBroker, "AgedRows"]


def timeline(using: str) -> Timeline:
    """Return the timeline of an alias. Raises `ImproperlyConfigured` if its time can't be moved."""
    # Imported here, because they import models: a plugin of pytest may be imported before the apps are ready.
    from django_delayq.testing.aged import AgedRows

    backend = get_backend(using)
    clock = backend.store.broker if backend.store else backend
    if not isinstance(clock, VirtualTimeBroker):
        raise ImproperlyConfigured(
            f'DELAYQ["{using}"] is on {type(clock).__name__}, whose time can\'t be moved; use DelayqMixin, '
            f'the fixture delayq_memory or use_memory_broker(), or set "BROKER": "{VIRTUAL_TIME_BROKER}".'
        )
    return AgedRows(backend.store, clock) if backend.store else clock
