"""Offer a broker that is the database alone: the tables are their own timer. See docs/internals/database.md."""

from django_delayq.brokers.database.broker import DatabaseBroker

__all__ = ["DatabaseBroker"]
