"""A broker whose clock is off from the database's: the embedded Redis can't be given another time."""

import time

from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import Alias

_time_ns = time.time_ns  # the machine's own, also where a test puts a process's clock off


class Skew:
    """How far ahead it is."""

    ms = 0


class SkewedBroker(MemoryBroker):
    """BROKER of the tests of two clocks."""

    def __init__(self, alias: Alias) -> None:
        super().__init__(alias, lambda: _time_ns() / 1_000_000 + Skew.ms)
