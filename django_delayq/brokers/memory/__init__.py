"""The reference broker: in this process only, for tests. Its code is the specification of the transitions."""

from django_delayq.brokers.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
