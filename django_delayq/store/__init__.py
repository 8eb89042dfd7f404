"""The reliability layer: rows in the database are the record, and a broker, their clock, tells when to look at them."""

from django_delayq.store.broker import StoredBroker

__all__ = ["StoredBroker"]
