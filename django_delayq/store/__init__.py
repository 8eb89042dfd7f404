"""The reliability layer: rows in the database are the record, and a broker is their clock."""

from django_delayq.store.broker import StoredBroker

__all__ = ["StoredBroker"]
