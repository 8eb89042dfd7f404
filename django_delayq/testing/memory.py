"""Put the aliases of DELAYQ on memory brokers for a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.conf import settings
from django.test import override_settings

from django_delayq.conf import DEFAULT_ALIAS, alias_names
from django_delayq.testing import sent
from django_delayq.testing.clock import put_back_at_end
from django_delayq.testing.timeline import VIRTUAL_TIME_BROKER


@contextmanager
def use_memory_broker() -> Iterator[None]:
    """Put every alias of DELAYQ, for the block, on an empty memory broker that goes by Python's clock.

    If `run_due` moves the clock, it is put back at the end of the block.
    """
    configured = getattr(settings, "DELAYQ", {DEFAULT_ALIAS: {}})
    in_memory = {name: {**configured[name], "BROKER": VIRTUAL_TIME_BROKER} for name in alias_names()}
    with override_settings(DELAYQ=in_memory), put_back_at_end():
        yield


if TYPE_CHECKING:
    from django.test import SimpleTestCase as _Base
else:
    _Base = object


class DelayqMixin(_Base):
    """A mixin for test cases, to be named before the base class: each test uses `use_memory_broker`.

    A `setUp` of your own must call `super().setUp()` first.
    """

    assert_sent = staticmethod(sent.assert_sent)
    assert_not_sent = staticmethod(sent.assert_not_sent)

    def setUp(self) -> None:
        self.enterContext(use_memory_broker())
        super().setUp()
