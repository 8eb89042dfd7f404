"""Offer the reference broker, for tests: it lives in one process. Its code specifies what every backend must do."""

from django_delayq.brokers.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
