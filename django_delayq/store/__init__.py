"""The reliability layer: rows in the database are the record, and a broker, their timer, tells when to look at them."""

from django_delayq.store.backend import DatabaseBackend

__all__ = ["DatabaseBackend"]
