"""A mixin for tests in the style of `unittest`."""

from typing import TYPE_CHECKING

from django_delayq.testing.broker import use_memory_broker

if TYPE_CHECKING:
    from django.test import SimpleTestCase as _Base
else:
    _Base = object


class DelayqMixin(_Base):
    """Mix into a test case, before its base: each test has an empty memory broker with virtual time.

    If you write a `setUp`, it must call `super().setUp()` first.
    """

    def setUp(self) -> None:
        self.enterContext(use_memory_broker())
        super().setUp()
